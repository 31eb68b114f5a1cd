"""Read and write files: JSON documents, traces, tables, pictures and their options, sound, conversations, treebanks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnctl.public import public_names

if TYPE_CHECKING:
    from attnctl.formats.audio import SAMPLE_RATE as SAMPLE_RATE
    from attnctl.formats.audio import read_audio as read_audio
    from attnctl.formats.chat import Conversation as Conversation
    from attnctl.formats.chat import Prompt as Prompt
    from attnctl.formats.chat import conversation_of as conversation_of
    from attnctl.formats.conllu import BadSentenceError as BadSentenceError
    from attnctl.formats.conllu import ParsedSentence as ParsedSentence
    from attnctl.formats.conllu import joined_sentences as joined_sentences
    from attnctl.formats.documents.json_documents import DocumentModel as DocumentModel
    from attnctl.formats.documents.json_documents import DocumentToken as DocumentToken
    from attnctl.formats.documents.json_documents import JsonDocument as JsonDocument
    from attnctl.formats.documents.json_documents import ResultModel as ResultModel
    from attnctl.formats.documents.json_documents import ResultTokens as ResultTokens
    from attnctl.formats.documents.json_documents import document_of as document_of
    from attnctl.formats.documents.json_documents import document_read as document_read
    from attnctl.formats.documents.json_documents import flat_records as flat_records
    from attnctl.formats.documents.json_documents import json_object as json_object
    from attnctl.formats.documents.json_documents import read_as as read_as
    from attnctl.formats.documents.json_documents import token_documents as token_documents
    from attnctl.formats.documents.json_documents import write_json as write_json
    from attnctl.formats.documents.overview_json import overview_to_json as overview_to_json
    from attnctl.formats.documents.schemas import SCHEMAS as SCHEMAS
    from attnctl.formats.documents.schemas import make_schema as make_schema
    from attnctl.formats.documents.schemas import schema_of as schema_of
    from attnctl.formats.documents.trace_json import trace_to_json as trace_to_json
    from attnctl.formats.photographs import read_photograph as read_photograph
    from attnctl.formats.pictures import CMAP as CMAP
    from attnctl.formats.pictures import DPI as DPI
    from attnctl.formats.pictures import FIGURE_ALONE as FIGURE_ALONE
    from attnctl.formats.pictures import PLAIN as PLAIN
    from attnctl.formats.pictures import BatchLook as BatchLook
    from attnctl.formats.pictures import Look as Look
    from attnctl.formats.pictures import MapLook as MapLook
    from attnctl.formats.pictures import PictureLook as PictureLook
    from attnctl.formats.pictures import TitleOption as TitleOption
    from attnctl.formats.pictures import figure_bytes as figure_bytes
    from attnctl.formats.pictures import format_names as format_names
    from attnctl.formats.pictures import picture_format as picture_format
    from attnctl.formats.pictures import suffixes_listed as suffixes_listed
    from attnctl.formats.storage import save_value as save_value
    from attnctl.formats.tables import TABLE_FORMATS as TABLE_FORMATS
    from attnctl.formats.tables import block_of as block_of
    from attnctl.formats.tables import weight_blocks as weight_blocks
else:
    __getattr__, __dir__, __all__ = public_names(
        __name__,
        {
            "attnctl.formats.audio": "SAMPLE_RATE read_audio",
            "attnctl.formats.chat": "Conversation Prompt conversation_of",
            "attnctl.formats.conllu": "BadSentenceError ParsedSentence joined_sentences",
            "attnctl.formats.documents.json_documents": (
                "DocumentModel DocumentToken JsonDocument ResultModel ResultTokens document_of document_read "
                "flat_records json_object read_as token_documents write_json"
            ),
            "attnctl.formats.documents.overview_json": "overview_to_json",
            "attnctl.formats.documents.schemas": "SCHEMAS make_schema schema_of",
            "attnctl.formats.documents.trace_json": "trace_to_json",
            "attnctl.formats.photographs": "read_photograph",
            "attnctl.formats.pictures": (
                "BatchLook CMAP DPI FIGURE_ALONE Look MapLook PLAIN PictureLook TitleOption figure_bytes "
                "format_names picture_format suffixes_listed"
            ),
            "attnctl.formats.storage": "save_value",
            "attnctl.formats.tables": "TABLE_FORMATS block_of weight_blocks",
        },
    )
