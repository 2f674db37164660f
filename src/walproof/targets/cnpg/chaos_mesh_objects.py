"""The objects of Chaos Mesh that are read, as far as they are read."""

from walproof.targets.cnpg.objects import Condition, Metadata, Read, Words


class ChaosEvent(Read):
    message: Words = ""


class ChaosRecord(Read):
    id: str = ""
    """NAMESPACE/POD, or with /CONTAINER."""
    phase: Words = ""
    events: list[ChaosEvent] = []


class ChaosRecords(Read):
    container_records: list[ChaosRecord] = []


class ChaosStatus(Read):
    conditions: list[Condition] = []
    experiment: ChaosRecords = ChaosRecords()

    def holds(self, condition: str) -> bool:
        """Whether that condition is true; AllInjected is true of no pods too, so some must be selected."""
        stated = {one.type: one.status for one in self.conditions}
        return stated.get(condition) == "True" and stated.get("Selected") == "True"

    @property
    def reason(self) -> str:
        """The last message of what went wrong, "" where nothing says so."""
        messages = [event.message for record in self.experiment.container_records for event in record.events]
        return next((message for message in reversed(messages) if message), "")


class ChaosExperiment(Read):
    """An object of Chaos Mesh."""

    metadata: Metadata
    status: ChaosStatus = ChaosStatus()
