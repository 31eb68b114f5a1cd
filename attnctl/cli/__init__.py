"""Write a command: its form and options, what it opens, progress, and what it writes to the terminal and to files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnctl.public import public_names

if TYPE_CHECKING:
    from attnctl.checks.options import CHANGED as CHANGED
    from attnctl.checks.options import CHECKPOINT as CHECKPOINT
    from attnctl.checks.options import INPUT as INPUT
    from attnctl.checks.options import LOOK as LOOK
    from attnctl.checks.options import MADE as MADE
    from attnctl.checks.options import MATHEMATICS as MATHEMATICS
    from attnctl.checks.options import MODEL as MODEL
    from attnctl.checks.options import NUMBERS as NUMBERS
    from attnctl.checks.options import ONE_CALL as ONE_CALL
    from attnctl.checks.options import OUTPUT as OUTPUT
    from attnctl.checks.options import PICTURE as PICTURE
    from attnctl.checks.options import SHOW as SHOW
    from attnctl.checks.options import WORK as WORK
    from attnctl.checks.options import decimal as decimal
    from attnctl.checks.options import whole as whole
    from attnctl.cli.app import PROGRAM as PROGRAM
    from attnctl.cli.app import all_commands as all_commands
    from attnctl.cli.app import load_command as load_command
    from attnctl.cli.app import program_group as program_group
    from attnctl.cli.app import run_command as run_command
    from attnctl.cli.browser import show_in_browser as show_in_browser
    from attnctl.cli.command_form import command as command
    from attnctl.cli.command_form import refuse_unused as refuse_unused
    from attnctl.cli.command_form import was_typed as was_typed
    from attnctl.cli.cost import LESS_HEADS as LESS_HEADS
    from attnctl.cli.cost import check_memory_of_cuts as check_memory_of_cuts
    from attnctl.cli.cost import check_memory_of_heads as check_memory_of_heads
    from attnctl.cli.cost import notes_on_table as notes_on_table
    from attnctl.cli.defaults import VARIABLE_PREFIX as VARIABLE_PREFIX
    from attnctl.cli.defaults import config_path as config_path
    from attnctl.cli.defaults import options_of_all as options_of_all
    from attnctl.cli.defaults import read_defaults as read_defaults
    from attnctl.cli.defaults import stored_defaults as stored_defaults
    from attnctl.cli.defaults import why_no_default as why_no_default
    from attnctl.cli.engines import engine_of as engine_of
    from attnctl.cli.groups import MODEL_NAMES as MODEL_NAMES
    from attnctl.cli.groups import AgainstOption as AgainstOption
    from attnctl.cli.groups import AnswerOptions as AnswerOptions
    from attnctl.cli.groups import BosOption as BosOption
    from attnctl.cli.groups import ChatOption as ChatOption
    from attnctl.cli.groups import CheckpointOptions as CheckpointOptions
    from attnctl.cli.groups import CorpusModelOptions as CorpusModelOptions
    from attnctl.cli.groups import DeviceOption as DeviceOption
    from attnctl.cli.groups import EngineOptions as EngineOptions
    from attnctl.cli.groups import FileOption as FileOption
    from attnctl.cli.groups import GenerateOption as GenerateOption
    from attnctl.cli.groups import HeadOption as HeadOption
    from attnctl.cli.groups import ImageOption as ImageOption
    from attnctl.cli.groups import JsonOption as JsonOption
    from attnctl.cli.groups import KeyTokensOption as KeyTokensOption
    from attnctl.cli.groups import LayerOption as LayerOption
    from attnctl.cli.groups import ManyTextsModelOptions as ManyTextsModelOptions
    from attnctl.cli.groups import MathematicsOptions as MathematicsOptions
    from attnctl.cli.groups import ModelOptions as ModelOptions
    from attnctl.cli.groups import OffOption as OffOption
    from attnctl.cli.groups import PrecisionOption as PrecisionOption
    from attnctl.cli.groups import PromptOptions as PromptOptions
    from attnctl.cli.groups import QueryOption as QueryOption
    from attnctl.cli.groups import ReplaceOption as ReplaceOption
    from attnctl.cli.groups import SeedOption as SeedOption
    from attnctl.cli.groups import SourceArgument as SourceArgument
    from attnctl.cli.groups import SourceLanguageOption as SourceLanguageOption
    from attnctl.cli.groups import SpansOption as SpansOption
    from attnctl.cli.groups import TargetLanguageOption as TargetLanguageOption
    from attnctl.cli.groups import TargetOption as TargetOption
    from attnctl.cli.groups import TellingHeadOption as TellingHeadOption
    from attnctl.cli.groups import TellingLayerOption as TellingLayerOption
    from attnctl.cli.groups import TextArgument as TextArgument
    from attnctl.cli.groups import TextModelOptions as TextModelOptions
    from attnctl.cli.groups import TextPairOption as TextPairOption
    from attnctl.cli.groups import TokenizerOption as TokenizerOption
    from attnctl.cli.groups import TokensOption as TokensOption
    from attnctl.cli.groups import WatchedModelOptions as WatchedModelOptions
    from attnctl.cli.groups import WeightOptions as WeightOptions
    from attnctl.cli.groups import WeightsModelOptions as WeightsModelOptions
    from attnctl.cli.groups import WordsOption as WordsOption
    from attnctl.cli.groups import option_values as option_values
    from attnctl.cli.groups import output_option as output_option
    from attnctl.cli.opening import model_of as model_of
    from attnctl.cli.opening import open_source as open_source
    from attnctl.cli.opening import text_source as text_source
    from attnctl.cli.output import check_table as check_table
    from attnctl.cli.output import import_drawing as import_drawing
    from attnctl.cli.output import is_quiet as is_quiet
    from attnctl.cli.output import output_format as output_format
    from attnctl.cli.output import page_notes as page_notes
    from attnctl.cli.output import print_lines as print_lines
    from attnctl.cli.output import print_wrapped as print_wrapped
    from attnctl.cli.output import put_bytes as put_bytes
    from attnctl.cli.output import put_report as put_report
    from attnctl.cli.output import safe_console as safe_console
    from attnctl.cli.output import say_note as say_note
    from attnctl.cli.output import say_notes as say_notes
    from attnctl.cli.output import say_unknown as say_unknown
    from attnctl.cli.output import say_unless_quiet as say_unless_quiet
    from attnctl.cli.output import show_forms as show_forms
    from attnctl.cli.output import write_drawing as write_drawing
    from attnctl.cli.output import write_forms as write_forms
    from attnctl.cli.output import write_panels as write_panels
    from attnctl.cli.output import write_table as write_table
    from attnctl.cli.progress import cost_progress as cost_progress
    from attnctl.cli.progress import heads_over_tokens as heads_over_tokens
    from attnctl.cli.progress import items_progress as items_progress
    from attnctl.cli.progress import say_stage as say_stage
    from attnctl.cli.session import Session as Session
    from attnctl.cli.session import models_kept as models_kept
    from attnctl.cli.suggestions import TEXT_WORDS as TEXT_WORDS
    from attnctl.cli.suggestions import completing as completing
    from attnctl.cli.suggestions import suggest_choice as suggest_choice
    from attnctl.cli.two_models import ComparedModelOptions as ComparedModelOptions
    from attnctl.cli.two_models import CopyOptions as CopyOptions
    from attnctl.cli.two_models import OptionsOfB as OptionsOfB
    from attnctl.cli.two_models import ReadTextArgument as ReadTextArgument
    from attnctl.cli.two_models import check_models as check_models
    from attnctl.render.terminal.console import Shown as Shown
else:
    __getattr__, __dir__, __all__ = public_names(
        __name__,
        {
            "attnctl.checks.options": (
                "CHANGED CHECKPOINT INPUT LOOK MADE MATHEMATICS MODEL NUMBERS ONE_CALL OUTPUT PICTURE SHOW WORK "
                "decimal whole"
            ),
            "attnctl.cli.app": "PROGRAM all_commands load_command program_group run_command",
            "attnctl.cli.browser": "show_in_browser",
            "attnctl.cli.command_form": "command refuse_unused was_typed",
            "attnctl.cli.cost": "LESS_HEADS check_memory_of_cuts check_memory_of_heads notes_on_table",
            "attnctl.cli.defaults": (
                "VARIABLE_PREFIX config_path options_of_all read_defaults stored_defaults why_no_default"
            ),
            "attnctl.cli.engines": "engine_of",
            "attnctl.cli.groups": (
                "AgainstOption AnswerOptions BosOption ChatOption CheckpointOptions CorpusModelOptions DeviceOption "
                "EngineOptions FileOption GenerateOption HeadOption ImageOption JsonOption KeyTokensOption "
                "LayerOption MODEL_NAMES ManyTextsModelOptions MathematicsOptions ModelOptions OffOption "
                "PrecisionOption PromptOptions QueryOption ReplaceOption SeedOption SourceArgument "
                "SourceLanguageOption SpansOption TargetLanguageOption TargetOption TellingHeadOption "
                "TellingLayerOption TextArgument TextModelOptions TextPairOption TokenizerOption TokensOption "
                "WatchedModelOptions WeightOptions WeightsModelOptions WordsOption option_values output_option"
            ),
            "attnctl.cli.opening": "model_of open_source text_source",
            "attnctl.cli.output": (
                "check_table import_drawing is_quiet output_format page_notes print_lines print_wrapped put_bytes "
                "put_report safe_console say_note say_notes say_unknown say_unless_quiet show_forms write_drawing "
                "write_forms write_panels write_table"
            ),
            "attnctl.cli.progress": "cost_progress heads_over_tokens items_progress say_stage",
            "attnctl.cli.session": "Session models_kept",
            "attnctl.cli.suggestions": "TEXT_WORDS completing suggest_choice",
            "attnctl.cli.two_models": "ComparedModelOptions CopyOptions OptionsOfB ReadTextArgument check_models",
            "attnctl.render.terminal.console": "Shown",
        },
    )
