"""Settings of a network reach its family, and one that it lacks is refused."""
import inspect

import pytest

import config
import train_parall
from common.errors import UsageError
from recognition.build_symbol import OF_FAMILIES, build_symbol
from recognition.settings import SETTINGS, complete, defaults
from symbols import get_backbone, list_backbones

OTHERS = {'num_layers': 18, 'net_output': 'FC', 'net_act': 'relu', 'net_se': 1, 'net_unit': 4, 'net_input': 0,
          'net_blocks': [1, 1, 1, 1], 'net_multiplier': 0.5, 'bn_mom': 0.8}


def known(family):
    return inspect.signature(get_backbone(family)).parameters


def test_every_setting_of_a_family_is_one_of_families():
    found = {name for family in list_backbones() for name in known(family) if name in SETTINGS}
    assert found == set(OF_FAMILIES) == set(OTHERS)
    assert all(value != SETTINGS[name].default for name, value in OTHERS.items())


@pytest.mark.parametrize('name', OF_FAMILIES)
@pytest.mark.parametrize('family', list_backbones())
def test_a_setting_is_used_or_refused(family, name):
    cfg = dict(defaults(), net_name=family, **{name: OTHERS[name]})
    given = {}

    def builder(**settings):
        given.update(settings)
    builder.__signature__ = inspect.signature(get_backbone(family))
    if name in known(family):
        build_symbol(cfg, lambda family: builder)
        assert given[name] == OTHERS[name]
    else:
        with pytest.raises(UsageError) as error:
            build_symbol(cfg, get_backbone)
        message = str(error.value)
        assert '\n' not in message and family in message and message.startswith('%s=%s: ' % (name, OTHERS[name]))
        named = message.rpartition('it has ')[2].split(', ')
        assert set(named) == {'emb_size'} | {one for one in known(family) if one in SETTINGS}


@pytest.mark.parametrize('network', list(config.network))
def test_presets_hold_settings_of_their_family(network):
    build_symbol(complete(config.generate_config(network, 'demo', 'arcface')), get_backbone)


def test_the_command_line_refuses(monkeypatch, capsys):
    monkeypatch.setenv('OMP_NUM_THREADS', '1')
    code = train_parall.main('--plan --network y1 --set net_se=1 --set num_classes=10 --devices cpu:1'.split())
    error = capsys.readouterr().err
    assert code == 2 and error.count('\n') == 1 and 'net_se=1: the network family fmobilefacenet has no' in error
