"""What the sections of a recipe have in common: the base of them all, and the numbers in them."""

import operator
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=1, le=2**31)]
Seconds = Annotated[float, Field(gt=0, le=86_400)]
Rate = Annotated[float, Field(gt=0, le=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Name = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-z0-9][a-z0-9._-]*$")]
HexDigest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

LEFT_OUT_WHEN_EMPTY = Field(exclude_if=operator.not_)
"""Of fields that protocol version 1 began without: manifests that do not use them keep their id."""


class Section(BaseModel):
    """A table of a recipe or manifest."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
