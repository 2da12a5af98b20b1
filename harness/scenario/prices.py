"""Money. Prices are dated inputs of the user and never built in."""

from __future__ import annotations

from pydantic import Field

from harness.costs.laws import Record


class Prices(Record):
    """Dated prices, given by the user. Absent: nothing is said in money."""

    chip_hour_usd: float = Field(ge=0, description="US dollars for one chip for one hour.")
    sandbox_hour_usd: float = Field(default=0.0, ge=0, description="US dollars for one environment for one hour, while held.")
    tool_call_usd: float = Field(
        default=0.0, ge=0, description="US dollars for one tool call, each attempt, of tools without a price_usd of their own."
    )
    source: str = Field(default="", description="Where the prices come from, and when.")
