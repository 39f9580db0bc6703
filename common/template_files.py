"""The files that describe a template protocol, as they go with IJB-B and IJB-C.

_face_tid_mid.txt           NAME.jpg TEMPLATE MEDIA         a line for each image of a template
_template_pair_label.txt    TEMPLATE TEMPLATE 0|1           pairs for 1:1; 1: the same person
_name_5pts_score.txt        NAME.jpg x1 y1 ... x5 y5 SCORE  eyes, nose, corners of the mouth; the detector's score
_1N_gallery_*.csv           TEMPLATE,SUBJECT,...        1:N; a header; a line for each image of a template
_1N_probe_mixed.csv         the same                    those that are searched in each gallery

A template is a set of images of one person; a medium is a photo or a video, whose frames are images. Ids are whole
numbers. Every UserError names the file, and the line where there is one.
"""
import csv
import glob
import os

import numpy as np

from common.errors import UserError

MEDIA, PAIRS, POINTS = '_face_tid_mid.txt', '_template_pair_label.txt', '_name_5pts_score.txt'
GALLERY, PROBES = '_1N_gallery_*.csv', '_1N_probe_mixed.csv'
_CHUNK = 1 << 22                     # bytes of a table of numbers that are parsed at once
_MOST_DIGITS = 18
_SPACES = b' \t\r\n'


class MediaList:
    """Which images make up which templates; n lines, m different images, t different templates.

    names: of the images, in the order of their first lines; template_ids (t,) int64, rising.
    image, template, media (n,): position in names, position in template_ids, id.
    """

    def __init__(self, path):
        self.path, positions = os.path.abspath(path), {}
        image, template, media = [], [], []
        for number, fields in _lines(path):
            if len(fields) != 3:
                raise wrong_line(path, number, 'NAME TEMPLATE MEDIA is expected')
            image.append(positions.setdefault(fields[0], len(positions)))
            template.append(whole(fields[1], path, number))
            media.append(whole(fields[2], path, number))
        if not image:
            raise UserError('%s names no images' % self.path)
        self.names = list(positions)
        self.image, self.media = np.array(image), np.array(media)
        self.template_ids, self.template = np.unique(np.array(template), return_inverse=True)
        self._refuse_repeated()

    def _refuse_repeated(self):
        order = np.lexsort((self.media, self.template, self.image))
        columns = np.stack([self.image, self.template, self.media])[:, order]
        again = np.flatnonzero((columns[:, 1:] == columns[:, :-1]).all(axis=0))
        if len(again):
            first = order[again[0]]
            raise UserError('%s: %s comes twice in medium %d of template %d' % (
                self.path, self.names[self.image[first]], self.media[first], self.template_ids[self.template[first]]))

    def rows(self, ids, path):
        """Positions (k,) int32 in template_ids of ids (k,) that a file names. UserError for one that is not there."""
        ids = np.asarray(ids, np.int64)
        rows = np.minimum(np.searchsorted(self.template_ids, ids), len(self.template_ids) - 1)
        unknown = np.flatnonzero(self.template_ids[rows] != ids)
        if len(unknown):
            raise UserError('%s: template %d has no images in %s' % (os.path.abspath(path), ids[unknown[0]], self.path))
        return rows.astype(np.int32)


def read_pairs(path, media_list):
    """-> first, second (k,) int32, positions of templates; same (k,) bool. Millions of lines take seconds."""
    parts = []
    for number, block in number_blocks(path, ('TEMPLATE', 'TEMPLATE', '0|1')):
        wrong = np.flatnonzero(block[:, 2] > 1)
        if len(wrong):
            raise UserError('%s: the label of a pair is %d, 0 or 1 is expected (about line %d)' % (
                os.path.abspath(path), block[wrong[0], 2], number + wrong[0]))
        parts.append((media_list.rows(block[:, 0], path), media_list.rows(block[:, 1], path), block[:, 2] == 1))
    if not parts:
        raise UserError('%s holds no pairs' % os.path.abspath(path))
    return tuple(np.concatenate(part) for part in zip(*parts))


def number_blocks(path, columns):
    """Yield (number of its first line, (k, columns) int64) of a text file of whole numbers, in large blocks."""
    number = 1
    with _opened(path, 'rb') as stream:
        while True:
            chunk = stream.read(_CHUNK)
            chunk += stream.readline() if chunk else b''
            if not chunk:
                return
            if not _is_table(chunk, len(columns)):
                _find_wrong_line(path, number, chunk, columns)
            if chunk.strip():                                                # fromstring finds a number in blanks
                yield number, np.fromstring(chunk, np.int64, sep=' ').reshape(-1, len(columns))
            number += chunk.count(b'\n')


def _is_table(chunk, num_columns):
    """Whether each line holds so many short runs of digits, or is blank."""
    raw = np.frombuffer(chunk if chunk.endswith(b'\n') else chunk + b'\n', np.uint8)
    digit = (raw >= 48) & (raw <= 57)
    if not (digit | np.isin(raw, np.frombuffer(_SPACES, np.uint8))).all():
        return False
    edges = np.flatnonzero(np.diff(digit.astype(np.int8), prepend=0))        # begin, end, begin, end, ...
    lengths = edges[1::2] - edges[::2]
    fields = np.diff(np.searchsorted(edges[::2], np.flatnonzero(raw == 10)), prepend=0)
    return bool(np.isin(fields, (0, num_columns)).all() and lengths.max(initial=0) <= _MOST_DIGITS)


def _find_wrong_line(path, number, chunk, columns):
    """UserError for the first line that is no row of a table."""
    for offset, line in enumerate(chunk.split(b'\n')):
        if not _is_table(line, len(columns)):
            raise wrong_line(path, number + offset, '%s is expected, not %.60r' % (
                ' '.join(columns), line.decode('ascii', 'replace')))


def read_points(path, names):
    """-> points (m, 5, 2) float64, scores (m,) float64 of the images `names`; other lines are not needed."""
    positions, numbers = {name: position for position, name in enumerate(names)}, np.full((len(names), 11), np.nan)
    for number, fields in _lines(path):
        position = positions.get(fields[0]) if len(fields) == 12 else None
        if len(fields) != 12:
            raise wrong_line(path, number, 'NAME, ten coordinates and a score are expected')
        if position is None:
            continue
        if not np.isnan(numbers[position, 0]):
            raise wrong_line(path, number, '%s was there before' % fields[0])
        try:
            numbers[position] = [float(field) for field in fields[1:]]
        except ValueError:
            numbers[position] = np.nan
        if not np.isfinite(numbers[position]).all():
            raise wrong_line(path, number, 'NAME, ten coordinates and a score are expected')
    missing = np.flatnonzero(np.isnan(numbers[:, 0]))
    if len(missing):
        raise UserError('%s has no line for %d images, the first is %s'
                        % (os.path.abspath(path), len(missing), names[missing[0]]))
    return numbers[:, :10].reshape(-1, 5, 2), numbers[:, 10]


def read_subjects(path, media_list):
    """-> templates (k,) int32, positions of templates, each once; subjects (k,) int64. UserError if one has two."""
    subjects = {}
    with _opened(path, 'r') as stream:
        for number, fields in enumerate(csv.reader(stream), 1):
            if not fields or (number == 1 and not fields[0].strip().isdigit()):
                continue                                                     # blank, or the header
            if len(fields) < 2:
                raise wrong_line(path, number, 'TEMPLATE,SUBJECT,... is expected')
            template, subject = (whole(field.strip(), path, number) for field in fields[:2])
            if subjects.setdefault(template, subject) != subject:
                raise wrong_line(path, number, 'template %d is of subject %d, before that of %d'
                                 % (template, subject, subjects[template]))
    if not subjects:
        raise UserError('%s holds no templates' % os.path.abspath(path))
    return media_list.rows(list(subjects), path), np.array(list(subjects.values()), np.int64)


def find_file(folder, ending):
    """Path of the only file of a folder whose name ends so, None if there is none. UserError if there are several."""
    found = find_files(folder, '*' + ending)
    if len(found) > 1:
        raise UserError('%s has several files *%s: %s' % (os.path.abspath(folder), ending, ', '.join(
            map(os.path.basename, found))))
    return found[0] if found else None


def find_files(folder, pattern):
    return sorted(glob.glob(os.path.join(glob.escape(folder), pattern)))


def whole(text, path, number):
    """int of digits. UserError."""
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        raise wrong_line(path, number, '%.40r is no whole number' % text)
    return int(text)


def wrong_line(path, number, reason):
    """UserError to raise."""
    return UserError('%s line %d: %s' % (os.path.abspath(path), number, reason))


def _lines(path):
    """Yield (number, fields) of lines that are not blank."""
    with _opened(path, 'r') as stream:
        for number, line in enumerate(stream, 1):
            fields = line.split()
            if fields:
                yield number, fields


def _opened(path, mode):
    try:
        return open(path, mode, **({} if mode == 'rb' else {'encoding': 'utf-8-sig', 'errors': 'surrogateescape'}))
    except OSError as error:
        raise UserError('cannot read %s: %s' % (os.path.abspath(path), error.strerror)) from None
