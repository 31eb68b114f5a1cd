"""Options of a command that runs a text through two models, A and B: those of both, and those of B alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Annotated, Literal

from typer import Argument, Option

from attnctl.checks.model_options import OptionValues
from attnctl.checks.options import CHECKPOINT, ONE_CALL
from attnctl.cli.groups import (
    MODEL_NAMES,
    BosOption,
    DeviceOption,
    DtypeOption,
    GenerateOption,
    ImageOption,
    MathematicsOptions,
    ModelOption,
    OffOption,
    SeedOption,
    SizeOptions,
    TargetOption,
    TextOptions,
    TextPairOption,
    TruncateOption,
    option_values,
)
from attnctl.cli.suggestions import completing
from attnctl.errors import AttnctlError, UsageError
from attnctl.text import for_pasting

ReadTextArgument = Annotated[str | None, Argument(help="The text that both models read.", metavar="[TEXT]")]


def model_argument(help: str, metavar: str) -> object:
    """Return the argument that names a model: A or B."""
    return Argument(help=help, metavar=metavar, autocompletion=completing(*MODEL_NAMES))


@dataclass(frozen=True)
class CopyOptions(TextOptions):
    """The options of two models of one architecture, which are named by arguments."""

    dtype: DtypeOption = None
    device: DeviceOption = None
    off: OffOption = None
    bos: BosOption = None
    truncate: TruncateOption = False
    image: ImageOption = None
    generate: GenerateOption = None
    target: TargetOption = None
    text_pair: TextPairOption = None


@dataclass(frozen=True)
class ComparedModelOptions(SizeOptions, MathematicsOptions, CopyOptions):
    """The options of models whose weights are compared; they read texts, not conversations."""

    model: ModelOption = None
    seed: SeedOption = None


@dataclass(frozen=True)
class OptionsOfB:
    """The options of B, where they differ from those of A."""

    dtype_b: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"] | None,
        Option(help="The --dtype of B, if it differs from that of A.", envvar=ONE_CALL, rich_help_panel=CHECKPOINT),
    ] = None
    device_b: Annotated[
        str | None,
        Option(
            help="The --device of B, if it differs from that of A.",
            metavar="DEVICE",
            autocompletion=completing("auto", "cpu", "cuda", "mps"),
            envvar=ONE_CALL,
            rich_help_panel=CHECKPOINT,
        ),
    ] = None

    def options_of_both(self, a: str, b: str, model: CopyOptions) -> tuple[OptionValues, OptionValues]:
        """Return the options of A and the options of B; heads are switched off in B alone."""
        of_b = {field.name.removesuffix("_b"): getattr(self, field.name) for field in fields(self)}
        both = option_values(model)
        return both | {"model": a, "off": None}, both | {"model": b} | {k: v for k, v in of_b.items() if v is not None}

    @contextmanager
    def named_in_errors(self) -> Iterator[None]:
        """Within this context, an error about an option of B alone names that option: --dtype-b."""
        try:
            yield
        except AttnctlError as error:
            if error.option is not None and getattr(self, f"{error.option}_b", None) is not None:
                error.option += "_b"
            raise


def check_models(a: str, b: str, text: str | None) -> None:
    """Raise UsageError if B is a text, though a text follows."""
    from attnctl.models import names_model

    if text is not None and names_model(a) and not names_model(b) and " " in b.strip():
        raise UsageError(
            f'before a text, A and B are models: attnctl compare {for_pasting(b)} "…" --model {for_pasting(a)} '
            "compares two texts"
        )
