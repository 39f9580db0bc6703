"""Pictures of a training from the lines of its metrics file. Drawn by matplotlib, without a screen."""
import collections
import io
import math

from common.plotting import new_figure, require_matplotlib

MOST_POINTS = 400         # of a curve; longer ones are drawn as means, with the range of what they stand for
FEW_POINTS = 40           # so few are marked one by one
WIDTH, HEIGHT, COLUMNS, DPI = 5.4, 2.9, 2, 100

# curves: {name in the line: what the legend says}. scale: linear, log, zero (linear from 0 on) or percent (the same, of
# shares)
Panel = collections.namedtuple('Panel', 'title unit curves scale', defaults=('linear',))

PICTURES = {
    'Learning': [
        Panel('Loss', 'cross entropy', {'loss': 'loss'}),
        Panel('Accuracy in training', 'own center is the nearest', {'accuracy': 'accuracy'}, 'percent'),
        Panel('Learning rate', 'lr', {'lr': 'lr'}, 'log'),
    ],
    'Embeddings and centers': [
        Panel('Cosine of an image with', 'cosine', {'own_cosine': 'its own center',
                                                    'other_cosine': 'the nearest other center'}),
        Panel('Mean length of embeddings', 'length', {'embedding_norm': 'embeddings'}),
        Panel('Mean length of class centers', 'length', {'center_norm': 'centers'}),
        Panel('Gradient of the backbone', 'length', {'gradient_norm': 'gradient'}, 'log'),
        Panel('Loss scale', 'factor', {'loss_scale': 'loss scale'}, 'log'),
    ],
    'Speed and memory': [
        Panel('Speed', 'images/s', {'images_per_second': 'images/s'}, 'zero'),
        Panel('Waiting for data', 'share of the time', {'wait_share': 'waiting'}, 'percent'),
        Panel('Most memory so far', 'MiB', {'memory_mib': 'process', 'gpu_memory_mib': 'fullest GPU'}, 'zero'),
        Panel('Sent to other processes', 'MB per step', {'sent_megabytes': 'sent'}, 'zero'),
    ],
}


def draw_pictures(lines):
    """lines: of read_metrics -> {title: PNG as bytes}, of what they have. UserError if matplotlib is missing."""
    require_matplotlib('report.html')
    pictures = {}
    for title, panels in PICTURES.items():
        drawn = [(panel, curves) for panel in panels for curves in [curves_of(panel, lines)] if curves]
        jobs = [lambda axes, panel=panel, curves=curves: draw_panel(axes, panel, curves) for panel, curves in drawn]
        if title == 'Learning' and verifications(lines):
            jobs.insert(2, lambda axes: draw_verification(axes, verifications(lines)))
        if jobs:
            pictures[title] = draw(jobs, resumed_at(lines), max(line['step'] for line in lines))
    return pictures


def curves_of(panel, lines):
    """[(label, steps, values)] of the curves of a panel that are there; one that is always 0 is not worth drawing."""
    found = []
    for name, label in panel.curves.items():
        points = [(line['step'], line[name]) for line in lines if line['kind'] == 'train' and is_number(line.get(name))]
        if any(value for _, value in points) or (points and name not in ('sent_megabytes', 'memory_mib')):
            found.append((label, *zip(*points)))
    return found


def is_number(value):
    return isinstance(value, (int, float)) and math.isfinite(value)


def verifications(lines):
    """{set: its lines}"""
    found = {}
    for line in lines:
        if line['kind'] == 'verification' and is_number(line.get('accuracy_flip')):
            found.setdefault(str(line.get('set')), []).append(line)
    return found


def resumed_at(lines):
    """Steps that the training went on after."""
    return [line['step'] for line in lines if line['kind'] == 'run' and line['step']]


def draw(jobs, resumed, last):
    """jobs: function(axes) of each panel; steps go up to `last` -> PNG."""
    rows = -(-len(jobs) // COLUMNS)
    figure = new_figure('report.html', figsize=(WIDTH * COLUMNS, HEIGHT * rows), dpi=DPI, layout='constrained')
    for number, job in enumerate(jobs, 1):
        axes = figure.add_subplot(rows, COLUMNS, number)
        job(axes)
        axes.set_xlim(0, max(1, last) * 1.02)
        for step in resumed:
            axes.axvline(step, color='0.6', linewidth=0.8, linestyle=':')
        axes.set_xlabel('step' + (' (dotted: resumed)' if resumed else ''), fontsize=9)
        axes.grid(alpha=0.25)
        axes.tick_params(which='both', labelsize=8)
        axes.spines[['top', 'right']].set_visible(False)
    stream = io.BytesIO()
    figure.savefig(stream, format='png')
    return stream.getvalue()


def draw_panel(axes, panel, curves):
    for label, steps, values in curves:
        draw_curve(axes, label, steps, values)
    if panel.scale == 'log' and all(value > 0 for _, _, values in curves for value in values):
        axes.set_yscale('log')
    if panel.scale in ('zero', 'percent'):
        axes.set_ylim(0, 1.1 * max(value for _, _, values in curves for value in values) or 1)
    if panel.scale == 'percent':
        axes.yaxis.set_major_formatter(lambda share, position: '%g%%' % round(100 * share, 6))
    axes.set_title(panel.title, fontsize=10, loc='left')
    axes.set_ylabel(panel.unit, fontsize=9)
    if len(curves) > 1:
        axes.legend(fontsize=8, frameon=False)


def draw_curve(axes, label, steps, values):
    if len(steps) <= MOST_POINTS:
        axes.plot(steps, values, label=label, linewidth=1.3, marker='.' if len(steps) <= FEW_POINTS else '')
        return
    places, means, lowest, highest = zip(*thinned(steps, values))
    line, = axes.plot(places, means, label=label, linewidth=1.3)
    axes.fill_between(places, lowest, highest, color=line.get_color(), alpha=0.2, linewidth=0)


def thinned(steps, values):
    """Yield (last step, mean, lowest, highest) of MOST_POINTS groups of neighbours or fewer."""
    size = -(-len(steps) // MOST_POINTS)
    for first in range(0, len(steps), size):
        group = values[first:first + size]
        yield steps[min(first + size, len(steps)) - 1], sum(group) / len(group), min(group), max(group)


def draw_verification(axes, sets):
    """Accuracy with flip over the steps, with its standard deviation over the folds."""
    for name, lines in sets.items():
        steps, accuracies = [line['step'] for line in lines], [line['accuracy_flip'] for line in lines]
        spread = [line.get('accuracy_flip_std') or 0.0 for line in lines]
        line, = axes.plot(steps, accuracies, label=name.replace('$', r'\$'), linewidth=1.3,
                          marker='.' if len(steps) <= FEW_POINTS else '')
        axes.fill_between(steps, [mean - std for mean, std in zip(accuracies, spread)],
                          [mean + std for mean, std in zip(accuracies, spread)], color=line.get_color(), alpha=0.15,
                          linewidth=0)
    axes.set_title('Verification, with flip (band: deviation over the folds)', fontsize=10, loc='left')
    axes.set_ylabel('accuracy', fontsize=9)
    axes.legend(fontsize=8, frameon=False, loc='lower right')
