"""Options of a session that starts or continues; light enough for the command line to import."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ResumeOptions:
    """How a session is continued.

    Attributes
    ----------
    fresh : bool
        Whether to start another session even if one can be continued.
    retry_infra : int
        Number of times to repeat a run if its processes could not be launched or were killed from outside.
    until_rel_ci : float or None
        Target width of the intervals. Blocks are added until the intervals are `settled`, as judged after
        each number of blocks of `statistics.interim_analyses`. None keeps the number of repeats of the study.
    max_repeat : int
        Maximum number of blocks with `until_rel_ci`.
    judged : bool
        Whether runs are for verdicts, so that a warning is shown if there are too few.
    tensorboard : bool
        Whether TensorBoard's event files are written while runs train.
    """

    fresh: bool = False
    retry_infra: int = 0
    until_rel_ci: float | None = None
    max_repeat: int = 30
    judged: bool = True
    tensorboard: bool = False
