"""Settings, their kinds of values, presets and their composition."""
import copy
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

import config
from common.errors import UsageError
from recognition.kinds import items
from recognition.settings import SETTINGS, checked, complete, compose, defaults, preset, suggestion


def test_every_default_is_a_value_of_its_kind():
    assert complete(defaults()) == defaults()


def test_every_setting_is_explained():
    for name, setting in SETTINGS.items():
        assert setting.help and setting.help[-1] not in '. ', name


@pytest.mark.parametrize('name', list(config.network))
def test_network_presets_are_complete_configurations(name):
    assert complete(config.generate_config(name, 'demo', 'arcface')).network == name


@pytest.mark.parametrize('kind', ['dataset', 'loss'])
def test_dataset_and_loss_presets_are_complete_configurations(kind):
    for name in getattr(config, kind):
        names = dict({'network': 'r50', 'dataset': 'demo', 'loss': 'arcface'}, **{kind: name})
        cfg = complete(config.generate_config(names['network'], names['dataset'], names['loss']))
        assert cfg[kind] == name


def test_presets_hold_known_settings_only():
    for table in (config.network, config.dataset, config.loss):
        for name, values in table.items():
            assert set(values) <= set(SETTINGS), name


def test_the_margins_of_the_papers():
    def margins(loss):
        cfg = config.generate_config('r50', 'emore', loss)
        return cfg.loss_name, cfg.loss_s, cfg.loss_m1, cfg.loss_m2, cfg.loss_m3
    assert margins('arcface') == ('margin_softmax', 64.0, 1.0, 0.5, 0.0)
    assert margins('cosface') == ('margin_softmax', 64.0, 1.0, 0.0, 0.35)
    assert margins('combined') == ('margin_softmax', 64.0, 1.0, 0.3, 0.2)
    assert margins('nsoftmax') == ('margin_softmax', 64.0, 1.0, 0.0, 0.0)
    assert margins('softmax')[0] == 'softmax'


def test_generate_config_changes_nothing():
    before = copy.deepcopy((config.default, config.network, config.dataset, config.loss))
    cfg = config.generate_config('y1', 'emore', 'cosface')
    cfg.val_targets.append('mine')
    cfg.lr_steps.append(1)
    assert (config.default, config.network, config.dataset, config.loss) == before


def test_later_layers_win():
    assert compose({'lr': 1, 'wd': 1}, {'lr': 2}, {}) == {'lr': 2, 'wd': 1}


def test_unknown_preset_lists_the_known_ones():
    with pytest.raises(UsageError, match=r'unknown network r5O \(did you mean r50\?\); known: .*r100'):
        config.generate_config('r5O', 'emore', 'arcface')
    with pytest.raises(UsageError, match=r'unknown loss x; known: a, b'):
        preset('loss', {'a': {}, 'b': {}}, 'x')


def test_missing_settings_get_defaults_and_a_notice(caplog):
    older = {name: value for name, value in defaults().items() if name not in ('is_shuffled_rec', 'fp16')}
    with caplog.at_level(logging.INFO, 'shardface'):
        cfg = complete(older)
    assert cfg.is_shuffled_rec is False and cfg.fp16 is False
    assert 'is_shuffled_rec=False' in caplog.text and 'fp16=False' in caplog.text


def test_unknown_setting_is_a_warning_with_the_nearest_name(caplog):
    cfg = complete(dict(defaults(), lr_step='2,4'))
    assert 'lr_step' not in cfg
    assert 'unknown setting lr_step has no effect (did you mean lr_steps?)' in caplog.text


def test_needless_settings_of_insightface_are_no_warning(caplog):
    complete(dict(defaults(), workspace=256, ckpt_embedding=True))
    assert not caplog.records


@pytest.mark.parametrize('name, value, seen', [
    ('lr', 0.05, 0.05), ('lr', '1e-2', 0.01), ('lr', 1, 1.0),
    ('lr_steps', '2,4', [2, 4]), ('lr_steps', '[2,4]', [2, 4]), ('lr_steps', '2 4', [2, 4]), ('lr_steps', '', []),
    ('lr_steps', '[]', []), ('lr_steps', ' ( 2 , 4 ) ', [2, 4]), ('lr_steps', (2, 4), [2, 4]), ('lr_steps', '7', [7]),
    ('data_cutoff', False, 0), ('data_rand_mirror', 'no', False), ('data_rand_mirror', 1, True),
    ('image_shape', (112, 96, 3), [112, 96, 3]), ('image_shape', 'None', None), ('data_threads', 'none', None),
    ('val_targets', 'lfw, agedb_30', ['lfw', 'agedb_30']), ('val_targets', "['lfw']", ['lfw']), ('val_targets', [], []),
    ('sample_ratio', '1', 1.0), ('extra_model_name', 'try-1', 'try-1'), ('seed', '0', 0),
])
def test_values(name, value, seen):
    found = checked(name, value)
    assert found == seen and type(found) is type(seen)


@pytest.mark.parametrize('name, value', [
    ('lr', 0), ('lr', -0.1), ('lr', 'nan'), ('lr', float('inf')), ('lr', 'fast'), ('lr', None), ('lr', True),
    ('lr', []), ('lr', '1e999'), ('lr_steps', '4,2'), ('lr_steps', '2,,4'), ('lr_steps', '2,2'), ('lr_steps', '0,2'),
    ('lr_steps', '2;4'), ('lr_steps', '2,4,'), ('lr_steps', 'abc'), ('lr_steps', 5), ('lr_steps', '[2,4'),
    ('lr_steps', [2.5]), ('per_batch_size', 0), ('per_batch_size', 1.5), ('per_batch_size', '1.5'), ('ckpt', 4),
    ('sample_ratio', 0), ('sample_ratio', 1.01), ('fp16_scale', -1), ('fp16_scale', 'nan'), ('fp16', 'maybe'),
    ('fp16_scale', 'inf'), ('fp16_scale', 'Dynamic'), ('fp16_scale', '-0.5'), ('fp16_scale', None), ('fp16_scale', ''),
    ('fp16', 2), ('fp16', None), ('bn_mom', 1.0), ('mom', 1), ('image_shape', '112,112'), ('image_shape', '0,1,3'),
    ('head_memory', 'huge'), ('val_targets', 7), ('val_targets', [1]), ('extra_model_name', '../x'), ('loss_m1', 0.5),
    ('seed', -1), ('seed', 2**31), ('num_classes', 0), ('network', ''), ('dataset_path', 3), ('loss_s', {}),
])
def test_wrong_values_name_setting_and_value(name, value):
    with pytest.raises(UsageError) as caught:
        checked(name, value)
    assert str(caught.value).startswith('%s = %r: ' % (name, value)) and 'expected' in str(caught.value)


@given(st.sampled_from(sorted(SETTINGS)), st.one_of(st.text(), st.integers(), st.floats(), st.none(), st.booleans(),
                                                    st.lists(st.integers()), st.binary()))
def test_any_value_is_taken_or_refused_cleanly(name, value):
    try:
        found = checked(name, value)
    except UsageError:
        return
    assert checked(name, found) == found


@given(st.lists(st.integers(1, 10**9), unique=True).map(sorted), st.sampled_from(['%s', '[%s]', '(%s)', ' %s ']),
       st.sampled_from([',', ', ', ' ', ' , ']))
def test_lists_are_read_in_any_spelling(steps, brackets, comma):
    assert checked('lr_steps', brackets % comma.join(map(str, steps))) == steps


def test_items_of_nothing():
    assert items('') == items('  ') == items('[ ]') == items([]) == []


@pytest.mark.parametrize('fp16, scale, expected', [(False, 0, (False, 0.0)), (True, 0, (True, 1.0)),
                                                   (False, 128, (True, 128.0)), (True, 128, (True, 128.0)),
                                                   (False, 'dynamic', (True, 'dynamic'))])
def test_half_precision_is_one_setting_in_two_spellings(fp16, scale, expected):
    cfg = complete(dict(defaults(), fp16=fp16, fp16_scale=scale))
    assert (cfg.fp16, cfg.fp16_scale) == expected


def test_images_have_three_colours():
    with pytest.raises(UsageError, match='image_shape'):
        complete(dict(defaults(), image_shape=(112, 112, 1)))


def test_suggestion_only_if_there_is_a_near_name():
    assert suggestion('zzzz', SETTINGS) == ''
    assert 'per_batch_size' in suggestion('batch_size', SETTINGS)
