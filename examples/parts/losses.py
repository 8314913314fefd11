"""A tracker that writes the losses of a run into a table."""


class Losses:
    """Columns step, split and loss, in losses.tsv of the work directory."""

    def __init__(self, run):
        self.file = run.workdir / "losses.tsv"

    def cut(self, step):
        """Training starts or resumes after a step. Forget everything: lines until it are given again."""
        self.file.unlink(missing_ok=True)
        return 0

    def write(self, step, split, metrics):
        if "loss" in metrics:
            with self.file.open("a") as file:
                print(step, split, metrics["loss"], sep="\t", file=file)

    def attach(self, file, name):
        """Get a file of a report. A table of losses stores no files."""

    def finish(self, ending):
        """The run is "finished", "failed" or "interrupted". Nothing is open, so there is nothing to close."""
