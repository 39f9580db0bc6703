"""1:1 and 1:N evaluation of templates, sets of images of a person, from the files of IJB-B and IJB-C.

A template is the sum, over its photos and videos, of the mean embedding of the images of each. 1:1 gives TAR at FAR and
the area under the ROC for the pairs of a list, 1:N gives CMC and TPIR at FPIR of probes that are searched in galleries.
"""
import os
import sys
import time
import types

try:
    import common  # noqa: F401
except ModuleNotFoundError:          # run by its path, from a checkout that is not installed
    import as_package  # noqa: F401

import numpy as np

from common import alignment, template_files
from common.command import require_range, run_tool, tool_parser
from common.embedding_files import EmbeddingFile
from common.errors import UsageError, UserError
from common.files import replacing
from common.identification import NO_MATE, RATES, Search, closed_set_tpir, cmc, find_mates, num_top, open_set_tpir
from common.json_files import check_json_path, write_json
from common.network_flags import add_network, add_running, check_network_flags, open_embedder
from common.pair_scores import area_under_roc, rates_by_name, tar_at_far
from common.plotting import require_matplotlib
from common.template_files import MediaList, find_file, find_files, read_pairs, read_points, read_subjects
from common.template_images import ListedImages, embedded_images, saved_embeddings
from common.templates import TemplatePool, pair_cosines
from common.verification_plots import draw_roc

PROBES_AT_ONCE = 256


def make_parser():
    parser = tool_parser('shardface-templates', __doc__, 'shardface-templates --meta IJBC/meta --images '
                         'IJBC/loose_crop --align --model models/r50-arcface-emore/model,1 --flip --use-norm '
                         '--use-detector-score --json result.json')
    add = parser.add_argument_group('protocol').add_argument
    add('--meta', metavar='DIR', help='folder with *_face_tid_mid.txt, and what there is of *_template_pair_label.txt, '
        '*_name_5pts_score.txt, *_1N_gallery_*.csv and *_1N_probe_mixed.csv')
    add('--media', metavar='X.txt', help='lines NAME TEMPLATE MEDIA, instead of that in --meta')
    add('--pairs', metavar='X.txt', help='lines TEMPLATE TEMPLATE 0|1 for 1:1, the same')
    add('--points', metavar='X.txt', help='lines NAME x1 y1 ... x5 y5 SCORE, the same')
    add('--gallery', metavar='X.csv', action='append', help='TEMPLATE,SUBJECT,... for 1:N, the same; once for each')
    add('--probes', metavar='X.csv', help='TEMPLATE,SUBJECT,... of those that are searched, the same')
    add = parser.add_argument_group('images').add_argument
    add('--images', metavar='DIR', help='folder of the images, which --model embeds')
    add('--align', action='store_true', help='cut them by their five points; else they are aligned crops')
    add('--embeddings', metavar='X', help='instead: folder that shardface-embed made, or (n, D) floats in an .npy')
    add('--names', metavar='X.txt', help='names of its rows (default: names.txt beside it; without one, all images in '
        'order)')
    add = parser.add_argument_group('network').add_argument
    add_network(add)
    add_running(add)
    add('--threads', type=int, default=os.cpu_count() or 1, metavar='N', help='that read and decode (default: '
        '%(default)s)')
    add_templates(parser.add_argument_group('templates and figures').add_argument)
    return parser


def add_templates(add):
    add('--flip', action='store_true', help='the sum of the embeddings of an image and of its mirror image')
    add('--use-norm', action='store_true', help='keep the lengths of embeddings as weights; else each is divided by '
        'its own')
    add('--use-detector-score', action='store_true', help='weigh each image by the score of the detector')
    add('--block-size', type=int, default=1024, metavar='N', help='pairs at once (default: %(default)s)')
    add('--json', metavar='X.json', help='write the figures, too; a file that is there is replaced')
    add('--roc', metavar='X.png', help='draw the ROC of 1:1 (needs matplotlib); a file that is there is replaced')


def run(args):
    size = check_flags(args)
    find_protocol(args)
    media_list = MediaList(args.media)
    protocol = read_protocol(args, media_list)
    points, scores = None, None
    if args.align or args.use_detector_score:
        points, scores = read_points(args.points, media_list.names)
    began = time.monotonic()
    templates = make_templates(args, size, media_list, points, scores)
    found = {'images': len(media_list.names), 'templates': len(templates), 'embedding_size': templates.shape[1],
             'flip': args.flip, 'use_norm': args.use_norm, 'use_detector_score': args.use_detector_score,
             'seconds': round(time.monotonic() - began, 3)}
    print('%(images)d images, %(templates)d templates of %(embedding_size)d numbers; %(seconds).1f s' % found)
    if protocol.pairs:
        found['verification'] = verify(args, templates, *protocol.pairs)
    if protocol.galleries:
        found['identification'] = identify(templates, protocol.galleries, *protocol.probes)
        print('\n'.join(report_identification(found['identification'])))
    if args.json:
        write_json(args.json, found)


def check_flags(args):
    """(h, w). UsageError, UserError before any work."""
    size = check_network_flags(args)
    require_range(args.threads, '--threads', 1, 256)
    require_range(args.block_size, '--block-size', 1, 1 << 24)
    if bool(args.images) == bool(args.embeddings):
        raise UsageError('either --images or --embeddings is expected')
    if args.images and not args.model:
        raise UsageError('--images needs --model PREFIX,EPOCH')
    for flag in ('--flip', '--align', '--model') if args.embeddings else ('--names',):
        if getattr(args, flag[2:]):
            raise UsageError('%s does not go with %s' % (flag, '--embeddings: they are what they are'
                                                         if args.embeddings else '--images'))
    if args.align and size != alignment.SIZE:
        raise UsageError('--align cuts images of 112x112, --image-size is %s' % args.image_size)
    if args.json:
        check_json_path(args.json)
    if args.roc:
        require_matplotlib('--roc')
    return size


def find_protocol(args):
    """Fill in the files that --meta holds and no flag names. UsageError if there is too little to evaluate."""
    if args.meta:
        if not os.path.isdir(args.meta):
            raise UserError('--meta %s is no folder' % os.path.abspath(args.meta))
        for flag, ending in (('media', template_files.MEDIA), ('pairs', template_files.PAIRS),
                             ('points', template_files.POINTS)):
            setattr(args, flag, getattr(args, flag) or find_file(args.meta, ending))
        args.gallery = args.gallery or find_files(args.meta, '*' + template_files.GALLERY)
        args.probes = args.probes or find_file(args.meta, template_files.PROBES)
    if not args.media:
        raise UsageError('no list of images: --meta with a file *%s, or --media, is expected' % template_files.MEDIA)
    if bool(args.gallery) != bool(args.probes):
        raise UsageError('1:N needs both a gallery (--gallery, *%s) and probes (--probes, *%s)'
                         % (template_files.GALLERY, template_files.PROBES))
    if not args.pairs and not args.gallery:
        raise UsageError('nothing to evaluate: neither pairs (--pairs) nor a gallery (--gallery) were found')
    if not args.points and (args.align or args.use_detector_score):
        raise UsageError('--align and --use-detector-score need points: --points, *%s' % template_files.POINTS)
    if args.roc and not args.pairs:
        raise UsageError('--roc needs pairs: --pairs, *%s' % template_files.PAIRS)


def read_protocol(args, media_list):
    """Namespace: pairs (first, second, same) or None; galleries {name: (templates, subjects)}; probes, the same."""
    galleries = {}
    for path in args.gallery or []:
        templates, subjects = read_subjects(path, media_list)
        twice = np.flatnonzero(np.bincount(np.unique(subjects, return_inverse=True)[1]) > 1)
        if len(twice):
            raise UserError('%s: subject %d has two templates, a gallery holds one of each'
                            % (os.path.abspath(path), np.unique(subjects)[twice[0]]))
        name = os.path.splitext(os.path.basename(path))[0]
        if name in galleries:
            raise UsageError('--gallery: two files are named %s' % os.path.basename(path))
        galleries[name] = templates, subjects
    return types.SimpleNamespace(pairs=read_pairs(args.pairs, media_list) if args.pairs else None, galleries=galleries,
                                 probes=read_subjects(args.probes, media_list) if args.probes else None)


def make_templates(args, size, media_list, points, scores):
    """(t, D) float32, from images or from saved embeddings."""
    if args.embeddings:
        embeddings = EmbeddingFile(args.embeddings, '--embeddings')
        embedding_size, parts = embeddings.embedding_size, saved_embeddings(embeddings, media_list.names, args.names)
    else:
        source = ListedImages(args.images, media_list.names, points if args.align else None)
        embedder = open_embedder(args, size)
        embedding_size, parts = embedder.embedding_size, embedded_images(source, embedder, size, args)
    pool = TemplatePool(media_list, embedding_size, args.use_norm, scores if args.use_detector_score else None)
    for first, rows in parts:
        pool.add(first, rows)
    return pool.templates()


def verify(args, templates, first, second, same):
    """Figures of 1:1, printed; the ROC, if it is wanted."""
    began = time.monotonic()
    distances = -pair_cosines(templates, first, second, args.block_size)     # they only have to fall with the cosine
    seconds = max(time.monotonic() - began, 1e-9)
    auc, rates = area_under_roc(distances, same), tar_at_far(distances, same)
    print('1:1  %d pairs, %d of them same; %.0f pairs/s\n  area under ROC    %.6f' % (
        len(same), same.sum(), len(same) / seconds, auc))
    for rate, accepted in rates.items():
        print('  TAR at FAR %-6g %.4f' % (rate, accepted))
    if args.roc:
        result = types.SimpleNamespace(distances=distances, same=same, auc=auc)
        with replacing(args.roc) as partial, open(str(partial), 'wb') as stream:
            draw_roc(stream, {'1:1': result})
    return {'pairs': len(same), 'same': int(same.sum()), 'auc': auc, 'seconds': round(seconds, 3),
            'tar_at_far': rates_by_name(rates)}


def identify(templates, galleries, probes, probe_subjects):
    """{gallery: figures}; of several also 'mean', and 'joined' if no subject is in two of them."""
    found = {}
    for name, (rows, subjects) in galleries.items():
        mate = find_mates(probe_subjects, subjects)
        search = Search(templates[probes], templates[rows], mate, PROBES_AT_ONCE, 0)
        found[name] = figures(search, len(rows), open_set_tpir(search))
    if len(galleries) > 1:
        found['mean'] = mean_figures(list(found.values()))
        rows, subjects = (np.concatenate(part) for part in zip(*galleries.values()))
        mate = find_mates(probe_subjects, subjects)
        mated = mate != NO_MATE
        if len(np.unique(subjects)) == len(subjects) and mated.any():
            search = Search(templates[probes[mated]], templates[rows], mate[mated], PROBES_AT_ONCE,
                            num_top(max(RATES), mated.sum()))
            found['joined'] = figures(search, len(rows), closed_set_tpir(search))
    return found


def figures(search, gallery_size, tpir):
    """Of one gallery, for JSON."""
    return {'gallery': gallery_size, 'probes': len(search.mate), 'mates': int(search.mated.sum()),
            'cmc': cmc(search), 'tpir_at_fpir': tpir}


def mean_figures(parts):
    """The mean over galleries of what all of them have."""
    return {kind: {key: float(np.mean([part[kind][key] for part in parts])) for key in parts[0][kind]
                   if all(key in part[kind] for part in parts)} for kind in ('cmc', 'tpir_at_fpir')}


def report_identification(found):
    """Lines to print."""
    for name, part in found.items():
        yield '1:N  %s%s' % (name, ': %(probes)d probes, %(mates)d have a mate among %(gallery)d' % part
                             if 'probes' in part else '')
        for rank, share in part['cmc'].items():
            yield '  rank %-12d %.4f' % (rank, share)
        for rate, share in part['tpir_at_fpir'].items():
            yield '  TPIR at FPIR %-4g %.4f' % (rate, share)


def main(argv=None):
    return run_tool(make_parser(), run, argv)


if __name__ == '__main__':
    sys.exit(main())
