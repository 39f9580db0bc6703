"""One HTML file that shows a training: curves, verification, configuration, plan. It loads nothing from elsewhere.

    python -m recognition.report models/r50-arcface-emore/model
"""
import argparse
import base64
import html
import json
import logging
import os
import pathlib
import sys
import time

from common.command import run_tool
from common.errors import UserError
from common.files import replacing
from common.metrics_file import read_metrics
from recognition.curves import draw_pictures, is_number, verifications
from recognition.settings import SETTINGS

log = logging.getLogger('shardface')

STYLE = '''body { font: 15px/1.45 sans-serif; color: #222; max-width: 1120px; margin: 2em auto; padding: 0 1em }
h1 { font-size: 1.5em } h2 { font-size: 1.15em; margin-top: 2em; border-bottom: 1px solid #ddd }
table { border-collapse: collapse; font-size: 14px }
td, th { padding: 2px 12px 2px 0; text-align: left; vertical-align: top }
td.number, th.number { text-align: right } tr.changed td { font-weight: bold } img { max-width: 100% }
pre { font-size: 12.5px; overflow-x: auto; background: #f7f7f7; padding: 1em } .wide { overflow-x: auto }'''


def write_report(prefix, folder=None):
    """Write report.html into the folder of PREFIX-metrics.jsonl -> its path. UserError: no such file, no matplotlib.

    folder: for the pictures as PNG files, too.
    """
    prefix = pathlib.Path(os.path.abspath(str(prefix)))
    lines = read_metrics('%s-metrics.jsonl' % prefix)
    if not any(line['kind'] == 'train' for line in lines):
        raise UserError('%s-metrics.jsonl: no interval of a training is in it yet' % prefix)
    pictures = draw_pictures(lines)
    page = compose(prefix.parent.name, lines, read_config(prefix), pictures)
    path = prefix.parent / 'report.html'
    with replacing(path) as partial:
        partial.write_text(page, encoding='utf-8')
    for title, picture in pictures.items() if folder else ():
        with replacing(pathlib.Path(folder) / (title.lower().replace(' ', '-') + '.png')) as partial:
            partial.write_bytes(picture)
    return path


def read_config(prefix):
    """Settings of PREFIX-config.json; {} with a warning if it cannot be read."""
    path = '%s-config.json' % prefix
    try:
        found = json.loads(pathlib.Path(path).read_text(encoding='utf-8'))
    except (OSError, ValueError) as error:
        log.warning('no configuration in the report: cannot read %s (%s)', path, error)
        return {}
    return found if isinstance(found, dict) else {}


def compose(name, lines, cfg, pictures):
    """The page, a text. name: of the training."""
    runs = [line for line in lines if line['kind'] == 'run']
    parts = [section('Where it stands', table(standing(lines)))]
    parts += [section(title, '<img alt="%s" src="data:image/png;base64,%s">' % (
        escape(title), base64.b64encode(picture).decode('ascii'))) for title, picture in pictures.items()]
    if verifications(lines):
        parts.append(section('Verification', table(*verification_rows(verifications(lines)))))
    parts.append(section('Starts', table(*start_rows(runs))))
    if runs:
        parts.append(section('Memory plan', '<pre>%s</pre>' % escape('\n'.join(map(str, runs[-1].get('plan', []))))))
    if cfg:
        parts.append(section('Configuration (bold: not the default)', config_table(cfg)))
    return ('<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>%s</title><style>%s</style></head>\n'
            '<body><h1>%s</h1>\n%s\n</body></html>\n' % (escape(name), STYLE, escape(name), '\n'.join(parts)))


def escape(value):
    return html.escape(str(value), quote=True)


def section(title, content):
    return '<h2>%s</h2>\n<div class="wide">%s</div>' % (escape(title), content)


def table(rows, header=()):
    """Rows of values -> an HTML table; numbers stand at the right."""
    def cell(tag, value):
        is_right = isinstance(value, (int, float)) or str(value).replace('.', '', 1).isdigit()
        return '<%s%s>%s</%s>' % (tag, ' class="number"' if is_right else '', escape(value), tag)
    head = ''.join('<th>%s</th>' % escape(value) for value in header)
    body = ['<tr>%s</tr>' % ''.join(cell('td', value) for value in row) for row in rows]
    return '<table>%s%s</table>' % ('<tr>%s</tr>' % head if head else '', '\n'.join(body))


def shown(value, form='%.4f'):
    return form % value if is_number(value) else '-'


def at(seconds):
    """Local time of a line."""
    return time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(seconds)) if is_number(seconds) else '-'


def standing(lines):
    """Rows: the last interval, and the best verification."""
    last = [line for line in lines if line['kind'] == 'train'][-1]
    rows = [('step', str(last['step'])), ('epoch', last.get('epoch')), ('measured at', at(last.get('time'))),
            ('loss', shown(last.get('loss'))), ('accuracy in training', shown(last.get('accuracy'))),
            ('learning rate', shown(last.get('lr'), '%.3g')), ('speed', shown(last.get('images_per_second'),
                                                                              '%.1f images/s'))]
    for name, found in verifications(lines).items():
        best = max(found, key=lambda line: line['accuracy_flip'])
        rows.append(('best verification on %s' % name, '%.4f at step %d' % (best['accuracy_flip'], best['step'])))
    return rows


def verification_rows(sets):
    """(rows, header) of the last verification of each set, and of its best if that is another."""
    rows = []
    for name, found in sets.items():
        best = max(found, key=lambda line: line['accuracy_flip'])
        for which, line in [('last', found[-1])] + [('best', best)] * (best is not found[-1]):
            rates = line.get('tar_at_far') or {}
            rows.append((name, which, line['step'], pair(line, 'accuracy'), pair(line, 'accuracy_flip'),
                         shown(line.get('xnorm'), '%.2f'), shown(line.get('threshold')),
                         ', '.join('%s at %s' % (shown(share), rate) for rate, share in rates.items())))
    return rows, ('set', '', 'step', 'accuracy', 'with flip', 'XNorm', 'threshold', 'TAR at FAR')


def pair(line, name):
    return '%s \u00b1 %s' % (shown(line.get(name)), shown(line.get(name + '_std')))


def start_rows(runs):
    """(rows, header) of the starts of the training."""
    rows = [(at(line.get('time')), line['step'], line.get('processes'), ', '.join(map(str, line.get('devices', []))),
             line.get('images_per_step'), ', '.join('%s %s' % one for one in (line.get('versions') or {}).items()))
            for line in runs]
    return rows, ('began', 'after step', 'processes', 'devices of rank 0', 'images per step', 'versions')


def config_table(cfg):
    rows = []
    for name, value in cfg.items():
        is_changed = name not in SETTINGS or value != SETTINGS[name].default
        rows.append('<tr%s><td>%s</td><td>%s</td></tr>' % (' class="changed"' if is_changed else '', escape(name),
                                                          escape(json.dumps(value, ensure_ascii=False))))
    return '<table>%s</table>' % '\n'.join(rows)


def report_at_end(prefix):
    """Write the report of a training that is done. Whatever is in the way of it is a warning: nothing else is lost."""
    try:
        log.info('wrote %s', write_report(prefix))
    except Exception as error:           # of a drawing library there may be any; the training has ended well
        log.warning('no report: %s', ' '.join(str(error).split()) or type(error).__name__)


def make_parser():
    parser = argparse.ArgumentParser(
        prog='shardface-report', allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter,
        description='Write report.html, which shows a training, beside its PREFIX-metrics.jsonl.',
        epilog='example:\n  shardface-report models/r50-arcface-emore/model')
    parser.add_argument('prefix', metavar='PREFIX', help='of the results of a training, or their folder')
    parser.add_argument('--pictures', metavar='FOLDER', help='also write the pictures, as PNG files, into a folder')
    return parser


def run(args):
    prefix = os.path.join(args.prefix, 'model') if os.path.isdir(args.prefix) else args.prefix
    if args.pictures and not os.path.isdir(args.pictures):
        raise UserError('--pictures %s: there is no such folder' % args.pictures)
    log.info('wrote %s', write_report(prefix, args.pictures))


def main(argv=None):
    """Run the command line; returns the exit code."""
    return run_tool(make_parser(), run, argv)


if __name__ == '__main__':
    sys.exit(main())
