"""TensorBoard's event files, read back."""

from pathlib import Path


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Step and value of all scalars of a folder's event files, by tag."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    read.Reload()
    return {tag: [(event.step, event.value) for event in read.Scalars(tag)] for tag in read.Tags()["scalars"]}
