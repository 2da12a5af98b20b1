"""The base of all records of a scenario."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """Base of all scenario records: frozen, no unknown fields, no NaN or infinity, no silent conversion."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)
