"""How much memory a process has taken, and how much of this machine it can still take."""
import os
import re

UNLIMITED = 1 << 60                  # cgroup version 1 says so by a number near 2**63


def available_memory(root='/'):
    """Bytes that this process can still allocate: what is free, or soon can be, within every limit of its cgroups.

    None where the system does not say. root: where proc and sys are, for tests.
    """
    found = [free_memory(root)] + [room for folder in cgroup_folders(root) for room in [cgroup_room(folder)]]
    found = [room for room in found if room is not None]
    return min(found) if found else None


def resident(field='VmRSS'):
    """Bytes of this process in memory now, or the most so far ('VmHWM'); None where the system does not say."""
    match = re.search(r'^%s:\s*(\d+) kB' % field, read('/', 'proc/self/status'), re.MULTILINE)
    return int(match.group(1)) << 10 if match else None


def free_memory(root):
    """MemAvailable of the whole machine, bytes, or None."""
    match = re.search(r'^MemAvailable:\s*(\d+) kB', read(root, 'proc/meminfo'), re.MULTILINE)
    return int(match.group(1)) << 10 if match else None


def cgroup_folders(root):
    """Folders with the limits of this process: its cgroup and all that this one is in, of version 2 and of 1."""
    folders = []
    for line in read(root, 'proc/self/cgroup').splitlines():
        _, controllers, path = line.split(':', 2)
        if controllers and 'memory' not in controllers.split(','):
            continue
        base = os.path.join(root, 'sys/fs/cgroup', 'memory' if controllers else '')
        parts = [part for part in path.split('/') if part]
        folders += [os.path.join(base, *parts[:count]) for count in range(len(parts) + 1)]
    return folders


def cgroup_room(folder):
    """Bytes left under the limit of one cgroup, or None without a limit. Cached files count as free."""
    for limit, usage, cached in (('memory.max', 'memory.current', 'inactive_file'),
                                 ('memory.limit_in_bytes', 'memory.usage_in_bytes', 'total_inactive_file')):
        highest, used = read(folder, limit).strip(), read(folder, usage).strip()
        if highest.isdigit() and used.isdigit() and int(highest) < UNLIMITED:
            match = re.search(r'^%s (\d+)' % cached, read(folder, 'memory.stat'), re.MULTILINE)
            return max(0, int(highest) - int(used) + (int(match.group(1)) if match else 0))
    return None


def read(*path):
    """Text of a file, '' if it cannot be read."""
    try:
        with open(os.path.join(*path), encoding='utf-8') as stream:
            return stream.read()
    except OSError:
        return ''
