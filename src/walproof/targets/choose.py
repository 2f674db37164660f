"""Which target a `--target` means: nothing is the lab, `pretend…` the simulated one, else yours by file, URL or DSN."""

from walproof.model.ports import Target


def choose(text: str | None) -> Target:
    """The target named so; TargetError when it is not up or does not answer, UsageError when it is not valid."""
    if text is None or text == "lab" or text.startswith("lab:"):
        from walproof.targets.lab.target import lab_target

        return lab_target(text.removeprefix("lab:") if text and text.startswith("lab:") else None)
    if text == "pretend" or text.startswith("pretend?"):
        from walproof.targets.simulated.target import simulated

        return simulated(text)
    from walproof.targets.external.target_file import own_cluster

    return own_cluster(text)


def is_yours(text: str | None) -> bool:
    """Whether a `--target` means a cluster that walproof did not start, where everything needs consent."""
    return not (text is None or text.split(":")[0] == "lab" or text.split("?")[0] == "pretend")
