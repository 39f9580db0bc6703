"""Fixtures that several test files share."""
import os
import pathlib

import pytest
from hypothesis import settings

settings.register_profile('shared machine', deadline=None)      # a slow moment is no failure
settings.load_profile('shared machine')

ROOT = pathlib.Path(__file__).resolve().parent.parent


@pytest.fixture(scope='session')
def shared_data():
    """Folder with real photographs (SHARDFACE_DATA, or shared/data beside the checkout); skips where absent."""
    folder = pathlib.Path(os.environ.get('SHARDFACE_DATA', ROOT.parent / 'shared' / 'data'))
    if not folder.is_dir():
        pytest.skip('no real photographs: set SHARDFACE_DATA')
    return folder
