"""Figures of an evaluation as a JSON file."""
import json
import os

from common.errors import UserError
from common.files import replacing
from common.metrics_file import without_nan


def check_json_path(path):
    """UserError if no file can be written there. A file that is there may be replaced."""
    if not os.path.isdir(os.path.dirname(os.path.abspath(path))):
        raise UserError('--json %s: there is no folder to write it into' % path)
    if os.path.isdir(path):
        raise UserError('--json %s is a folder: name a file' % path)


def write_json(path, content):
    """content: of dicts, lists, texts and numbers; numbers that are not finite become null."""
    with replacing(path) as partial:
        partial.write_text(json.dumps(without_nan(content), indent=2, allow_nan=False) + '\n', encoding='utf-8')
