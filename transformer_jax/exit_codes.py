"""Exit codes of the commands and of a sweep's workers, for scripts."""

OK = 0
DEFECT = 1  # a traceback: what Python itself exits with
USER_ERROR = 2
SOME_FAILED = 3  # all that could be done is done; what could not has been named
LOST_PROCESS = 4  # one of several processes has died; started again, they go on
IN_USE = 75  # of a worker: another process works on its trials. EX_TEMPFAIL of sysexits.h
INTERRUPTED = 130  # 128 + SIGINT, as of a process that the signal has ended
WARNED = 138  # 128 + SIGUSR1
BROKEN_PIPE = 141  # 128 + SIGPIPE
TERMINATED = 143  # 128 + SIGTERM

KILLED = -9
"""Of a worker that has disappeared, as subprocess.Popen says of a process that SIGKILL has ended."""

OF_REASON = {"finished": OK, "SIGINT": INTERRUPTED, "SIGUSR1": WARNED, "SIGTERM": TERMINATED}
"""By `TrainResult.reason`: why training has ended."""
