"""What is logged where."""
import logging
import re

import pytest

from common.errors import UserError
from common.logs import log_to_file, logging_to_console

log = logging.getLogger('shardface')


def test_one_process(tmp_path, capsys):
    path = tmp_path / 'model.log'
    for run in ('first', 'second'):
        with logging_to_console():
            log_to_file(str(path))
            log.info('%s run', run)
            log.debug('details')
    console = capsys.readouterr().err
    assert re.fullmatch(r'\d{4}-\d\d-\d\d \d\d:\d\d:\d\d INFO first run', console.splitlines()[0])
    assert path.read_text(encoding='utf-8') == console and len(console.splitlines()) == 2


def test_several_processes(tmp_path, capsys):
    for rank in (0, 1):
        with logging_to_console(rank, 2):
            log_to_file(str(tmp_path / 'model.log'), rank, 2)
            log.info('step')
            log.warning('careful')
    assert re.findall(r'rank \d \w+ \w+', capsys.readouterr().err) == [
        'rank 0 INFO step', 'rank 0 WARNING careful', 'rank 1 WARNING careful']
    assert len((tmp_path / 'model.log').read_text(encoding='utf-8').splitlines()) == 4


def test_the_root_logger_does_not_repeat_it(capsys, monkeypatch):
    handler = logging.StreamHandler()
    monkeypatch.setattr(logging.getLogger(), 'handlers', [handler])
    with logging_to_console():
        log.info('once')
    assert capsys.readouterr().err.count('once') == 1


def test_file_that_cannot_be_written(tmp_path):
    with logging_to_console(), pytest.raises(UserError, match='cannot write .*none'):
        log_to_file(str(tmp_path / 'none' / 'model.log'))
