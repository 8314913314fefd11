"""Five architectures of about 3.9 million parameters: the study in the folder above, for an accelerator."""

from experiments.architectures.models import LARGE
from experiments.architectures.study import study

STUDY = study(LARGE)
