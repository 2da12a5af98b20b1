"""Money. Prices are dated inputs of the user and never built in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from harness.core.errors import ConfigError
from harness.costs.laws import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

NotNegative = Annotated[float, Field(ge=0)]


class Prices(Record):
    """Dated prices, given by the user. Absent: nothing is said in money."""

    chip_hour_usd: float = Field(ge=0, description="US dollars for one chip for one hour.")
    sandbox_hour_usd: float = Field(default=0.0, ge=0, description="US dollars for one environment for one hour, while held.")
    tool_call_usd: float = Field(default=0.0, ge=0, description="US dollars for one tool call, each attempt.")
    tool_calls_usd: dict[str, NotNegative] = Field(
        default={}, description="The same for tools that cost something else, by name."
    )
    source: str = Field(default="", description="Where the prices come from, and when.")

    def of_call(self, tool: str) -> float:
        """US dollars for one call of a tool."""
        return self.tool_calls_usd.get(tool, self.tool_call_usd)

    def check_tools(self, names: Sequence[str]) -> None:
        """Whether every tool with a price of its own exists.

        Raises:
            ConfigError: one does not.

        """
        for name in self.tool_calls_usd:
            if name not in names:
                raise ConfigError(
                    "is the price of a tool that there is not",
                    field=f"world.prices.tool_calls_usd.{name}",
                    value=self.tool_calls_usd[name],
                    allowed=", ".join(names),
                    remedy="name a tool of [[workload.tools]]",
                )
