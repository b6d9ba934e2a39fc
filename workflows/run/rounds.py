"""Validation rounds that have not reported, and what the last one found. Pure; part of the run's state."""

from ...schemas.messages.run import EndedEvaluation, EvaluationReport
from .carried import Carried


class Rounds(Carried):
    open: dict[int, int] = {}
    """Versions whose round has not reported, and how often its workflow was started anew."""
    accuracy: float | None = None

    def begin(self, version: int) -> None:
        self.open[version] = 0

    def report(self, report: EvaluationReport) -> None:
        if self.open.pop(report.version, None) is not None:
            self.accuracy = report.accuracy

    def end(self, ended: EndedEvaluation, budget: int) -> bool:
        """The round's workflow is closed; whether it is to be started anew. Raises `LookupError` when it was too
        often."""
        if ended.version not in self.open:
            return False
        if ended.report is not None:
            self.report(ended.report)
            return False
        if self.open[ended.version] >= budget:
            raise LookupError(
                f"validation of version {ended.version} has no result: {ended.reason} "
                f"(restarted {self.open[ended.version]} times)"
            )
        self.open[ended.version] += 1
        return True
