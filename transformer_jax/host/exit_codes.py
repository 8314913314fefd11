"""Exit codes of the commands and of a sweep's workers, for scripts."""

OK = 0
DEFECT = 1  # a traceback; Python's own exit code for one
USER_ERROR = 2
SOME_FAILED = 3  # finished, but some lines or trials failed and are listed
LOST_PROCESS = 4  # another process of the job died; the same command resumes
IN_USE = 75  # from a worker: another process works on its trials; EX_TEMPFAIL of sysexits.h
INTERRUPTED = 130  # 128 + SIGINT, like the shell's code for a process that the signal ended
WARNED = 138  # 128 + SIGUSR1
BROKEN_PIPE = 141  # 128 + SIGPIPE
TERMINATED = 143  # 128 + SIGTERM

KILLED = -9
"""Code of a worker that has disappeared; subprocess.Popen gives it for a process that SIGKILL ended."""

OF_REASON = {"finished": OK, "SIGINT": INTERRUPTED, "SIGUSR1": WARNED, "SIGTERM": TERMINATED}
"""Exit codes by `TrainResult.reason`, the reason why training ended."""
