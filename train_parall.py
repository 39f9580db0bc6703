"""Train a face network whose classification layer is split over devices: command line -> configuration -> training.

This file alone reads the command line and the environment. MXNet is imported by `train`, after everything that can
be checked without it.
"""
import argparse
import json
import logging
import os
import sys
import time

import config
from common.command import run_tool
from common.errors import UsageError, UserError
from common.files import nearest_folder, replacing
from common.label_table import write_label_table
from common.logs import log_to_file, logging_to_console
from common.progress import StepBar
from recognition.agreement import all_or_none
from recognition.collective import connect
from recognition.dataset import find_dataset, find_sizes
from recognition.devices import contexts, num_cpu_devices, parse_devices
from recognition.events import require_tensorboard
from recognition.processes import find_place, refuse_parameter_server, run_in_job
from recognition.settings import SETTINGS, changed, checked, complete, preset, suggestion

log = logging.getLogger('shardface')

GROUPS = {
    'what to train': 'network dataset loss dataset_path',
    'devices': 'devices per_batch_size kvstore head_memory sample_ratio fp16_scale',
    'optimizer': 'lr lr_policy lr_steps lr_total warmup wd mom accumulate',
    'fine-tuning': 'pretrained pretrained_epoch pretrained_head class_map new_centers freeze_backbone',
    'run': 'max_steps end_epoch max_minutes seed frequent verbose',
    'results': 'models_root extra_model_name ckpt ckpt_every keep resume',
}
KINDS = 'network', 'dataset', 'loss'      # of presets, in the order of their layers


def make_parser():
    """The command line. Its values stay texts: recognition.settings checks them like those of config.py."""
    parser = argparse.ArgumentParser(
        prog='train_parall.py', allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter,
        description='Train a face recognition network; its classification layer is split over the devices.',
        epilog=describe_other_settings())
    for title, names in GROUPS.items():
        group = parser.add_argument_group(title)
        for name in names.split():
            group.add_argument(flag(name), metavar='X', help=describe(name).replace('%', '%%'))
    parser.add_argument_group('everything else').add_argument(
        '--set', metavar='KEY=VALUE', action='append', default=[],
        help='any setting, by its name in config.py; may be repeated')
    parser.add_argument('--distributed', action='store_true',
                        help='use Horovod even where no launcher is seen to have started several processes')
    group = parser.add_argument_group('seeing it')
    group.add_argument('--tensorboard', action='store_true', help=SETTINGS['tensorboard'].help)
    group.add_argument('--quiet', action='store_true', help='show warnings, errors and the last line only')
    group = parser.add_argument_group('before a run')
    shown = group.add_mutually_exclusive_group()
    shown.add_argument('--plan', action='store_true',
                       help='print what the run needs on each device and end: exit code 0 if it fits, 1 if not; '
                            'neither data nor devices need be there')
    shown.add_argument('--describe', action='store_true',
                       help='print layers, parameters, multiply-adds and activation memory of the network and end; '
                            'neither data nor devices need be there')
    shown.add_argument('--doctor', action='store_true',
                       help='see whether this machine can train, with --devices into --models-root, and end: a verdict '
                            'per line, exit code 1 if something fails; no data is needed')
    group.add_argument('--no-plan-check', action='store_true', help='run even if the plan does not fit')
    return parser


def flag(name):
    return '--' + name.replace('_', '-')


def describe(name):
    """'meaning (default: value)', and the known names of presets."""
    shown = getattr(config, 'default', {}).get(name, SETTINGS[name].default)
    if isinstance(shown, list):
        shown = ','.join(map(str, shown))
    presets = ': %s' % ', '.join(getattr(config, name, ())) if name in KINDS else ''
    return '%s%s (default: %s)' % (SETTINGS[name].help, presets, 'empty' if shown == '' else shown)


def describe_other_settings():
    """Lines of all settings that have no flag of their own."""
    with_flag = ' '.join(GROUPS.values()).split()
    lines = ['  %-20s %s' % (name, describe(name)) for name in SETTINGS if name not in with_flag]
    return '\n'.join(['settings for --set, which the presets of config.py set for you:'] + lines)


def given(args):
    """{setting: checked value} of everything on the command line; --set comes last."""
    names = [name for name in ' '.join(GROUPS.values()).split() if getattr(args, name) is not None]
    values = {name: checked(name, getattr(args, name), flag(name)) for name in names}
    for pair in args.set:
        name, equals, value = pair.partition('=')
        name = name.strip().replace('-', '_')
        if not equals:
            raise UsageError('--set %s: KEY=VALUE is expected' % pair)
        if name not in SETTINGS:
            raise UsageError('--set %s: unknown setting %s%s' % (pair, name, suggestion(name, SETTINGS)))
        values[name] = checked(name, value.strip(), '--set %s' % name)
    switched = {'plan_check': not args.no_plan_check, 'tensorboard': args.tensorboard}
    return dict(values, **{name: on for name, on in switched.items() if on != SETTINGS[name].default})


def build_config(args):
    """Parsed command line -> complete, checked configuration: an EasyDict of all settings. UsageError.

    default <- network <- dataset <- loss <- command line
    """
    values = given(args)
    names = {kind: values.get(kind) or getattr(config, 'default', {}).get(kind, SETTINGS[kind].default)
             for kind in KINDS}
    return complete(dict(compose_presets(names), **values))


def compose_presets(names):
    """{kind: name} -> flat dict of the presets of config.py, also of one made for insightface."""
    for kind in KINDS:
        if not hasattr(config, kind) or not hasattr(config, 'generate_config'):
            raise UserError('%s has no presets named %s or no generate_config: is it the config.py of this program?'
                            % (config.__file__, kind))
        preset(kind, getattr(config, kind), names[kind])
    composed = config.generate_config(*(names[kind] for kind in KINDS))
    if composed is None:                   # insightface's writes to its own dicts `default` and `config` instead
        composed = dict(config.default, **config.config)
    return dict(composed, **names)


def check_models_root(models_root):
    """UserError if results cannot be written there. Nothing is created."""
    folder = nearest_folder(models_root)
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK | os.X_OK):
        raise UserError('models root %s: cannot write to %s; choose another --models-root'
                        % (os.path.abspath(models_root), folder))


def prefix_of(cfg):
    """Absolute PREFIX of everything a run writes: models_root/network-loss-dataset[-extra]/model."""
    parts = [cfg.network, cfg.loss, cfg.dataset] + ([cfg.extra_model_name] if cfg.extra_model_name else [])
    return os.path.join(os.path.abspath(cfg.models_root), '-'.join(parts), 'model')


def save_config(cfg, prefix):
    """Write PREFIX-config.json: every setting as it is used."""
    with replacing('%s-config.json' % prefix) as partial:
        partial.write_text(json.dumps(cfg, indent=2, ensure_ascii=False) + '\n', encoding='utf-8')


def set_threads(request, environ, num_processes=1):
    """Share the cores among the CPU devices of the processes of this host, unless the user has chosen.

    To be called before MXNet is imported.
    """
    if 'OMP_NUM_THREADS' in environ:
        log.info('OMP_NUM_THREADS=%s, as the environment says', environ['OMP_NUM_THREADS'])
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()
    num_devices = num_cpu_devices(request) * num_processes
    environ['OMP_NUM_THREADS'] = str(max(1, cores // num_devices))
    log.info('OMP_NUM_THREADS=%s: %d cores, %d CPU devices at most', environ['OMP_NUM_THREADS'], cores, num_devices)


def train(cfg, request, collective, show_bar=False):
    """Configuration and device Request -> parts -> Trainer -> exit code. From here on MXNet is there."""
    began = time.monotonic()                # the import of MXNet counts
    from recognition.build import build_trainer
    from recognition.report import report_at_end
    from symbols import get_backbone
    prefix = prefix_of(cfg)
    own = all_or_none(collective, lambda: begin_results(request, prefix, collective), 'results')
    trainer = build_trainer(cfg, get_backbone, own, prefix, collective, began)
    if collective.rank == 0:
        save_config(cfg, prefix)
        if len(trainer.train_iter.label_table) > 1:
            write_label_table('%s-labels.tsv' % prefix, trainer.train_iter.label_table)
        if show_bar:
            trainer.recorder.show(StepBar(trainer.module.num_update, trainer.total_steps))
    trainer.fit()
    if collective.rank == 0 and cfg.report and not trainer.stop.reason:
        report_at_end(prefix)
    return trainer.stop.exit_code


def begin_results(request, prefix, collective):
    """Make the folder for results and begin the log of rank 0 there; returns the contexts of this process."""
    make_folder(os.path.dirname(prefix))
    if collective.rank == 0:
        log_to_file('%s.log' % prefix, collective.rank, collective.world_size)
    return contexts(request, collective.local_rank, collective.local_size)


def show_plan(cfg, request, place):
    """Print the memory plan; exit code 0 if it fits, 1 if not."""
    from recognition.plan_check import make_plan, planned_devices
    from recognition.plan_text import report
    from symbols import get_backbone
    plan = make_plan(cfg, get_backbone, planned_devices(request, place), place)
    print('\n'.join(report(plan)))
    return 0 if plan.fits else 1


def show_network(cfg):
    """Print the network in numbers; exit code 0."""
    from recognition.describe import describe
    from symbols import get_backbone
    print('\n'.join(describe(cfg, get_backbone)))
    return 0


def show_findings(cfg, request):
    """Print what the doctor finds, line by line; exit code 0, or 1 if something fails."""
    from recognition.doctor import examine, exit_code, line_of

    def get_backbone(family):              # imported when it is asked for: MXNet may not work
        import symbols
        return symbols.get_backbone(family)
    findings = []
    for finding in examine(request, cfg.models_root, os.environ['OMP_NUM_THREADS'], get_backbone):
        print(line_of(finding), flush=True)
        findings.append(finding)
    return exit_code(findings)


def make_folder(folder):
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise UserError('cannot create %s: %s; choose another --models-root' % (folder, error.strerror)) from None


def run(args):
    """Check all that can be checked without MXNet, then train or show the plan; returns the exit code."""
    place = find_place(os.environ)
    with logging_to_console(place.rank, place.world_size, args.quiet or args.doctor):
        cfg = build_config(args)
        if args.describe:
            return show_network(cfg)
        refuse_parameter_server(os.environ)
        request = parse_devices(cfg.devices, os.environ.get('CUDA_VISIBLE_DEVICES'))
        if args.plan:
            find_sizes(cfg)
            return show_plan(cfg, request, place)
        set_threads(request, os.environ, place.local_size)
        if args.doctor:
            return show_findings(cfg, request)
        collective = connect(place, args.distributed)
        with collective.explaining():
            all_or_none(collective, lambda: find_files(cfg, collective.rank), 'files')
            log.info('settings that are not at their default: %s', changed(cfg))
            return train(cfg, request, collective, sys.stderr.isatty() and not args.quiet)


def find_files(cfg, rank):
    """Find what is read and what writes, and see where results can be written."""
    check_models_root(cfg.models_root)
    if cfg.tensorboard and rank == 0:
        require_tensorboard()
    find_dataset(cfg)


def main(argv=None):
    """Run the command line; returns the exit code: 0, 1 wrong file or environment, 2 wrong flag.

    130 and 143: stopped by SIGINT and SIGTERM; if it was training already, with a training state to resume from.
    """
    return run_in_job(lambda: run_tool(make_parser(), run, argv), os.environ)


def doctor(argv=None):
    """The command line of shardface-doctor: that of training with --doctor."""
    return main(['--doctor'] + (sys.argv[1:] if argv is None else argv))


if __name__ == '__main__':
    sys.exit(main())
