"""The command `tsn`: its parts, and how it ends.

Nothing heavy is imported before a command needs it, so that help and lists come at once.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from tinysubnets import __version__
from tinysubnets.commands import (
    compare,
    demo,
    export,
    inspect,
    learn,
    model,
    predict,
    report,
    run,
    search,
    serve,
    settings,
)
from tinysubnets.errors import ArtifactError, TinySubNetsError, unknown
from tinysubnets.text import for_terminal

FILES = ("model", "new", "patch", "out")  # options that an error of a model file can be about
TRAINING = ("demo", "learn", "resume", "run", "search")  # commands that train in this process
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of glibc's mallopt


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; gives the exit status.

    That is 2 after an error, 130 after Ctrl-C, and 141 where the reader of the output has gone, as
    in `| head`: what a shell tells of a command that ended so.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if arguments is None and words and words[0] in TRAINING:  # else the process is not ours alone
        keep_freed_memory()
    try:
        try:
            return _main(words)
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # here and not when Python ends, which would complain
    except BrokenPipeError:
        run.unread()
        return 128 + 13  # SIGPIPE


def keep_freed_memory() -> bool:
    """Have C's memory manager keep what is freed; gives whether it can, which glibc's does.

    It would give large blocks back to the system and fetch them again page by page, in every step
    of training: a fifth of an epoch of convolutions on a CPU. The process keeps the most it needs.
    """
    import ctypes

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(_M_MMAP_MAX, 0) and mallopt(_M_TRIM_THRESHOLD, -1))


def _main(words: list[str]) -> int:
    """Run the command line, whoever reads what it prints."""
    made, commands = _built()
    if not words:
        made.print_help()
        return 0
    if not words[0].startswith("-") and words[0] not in commands:
        say(unknown("command", words[0], commands) + " See tsn --help.")
        return 2
    options, others = made.parse_known_args(words)
    if others:
        hint = _as_setting(words, others) if hasattr(options, "assignments") else ""
        chosen = commands.get(words[0], made)  # whose usage is of help
        chosen.error(f"unrecognized arguments: {' '.join(others)}.{hint or _near(chosen, others)}")
    options.given = words  # for commands that start themselves again in other processes
    try:
        return int(options.run(options) or 0)
    except TinySubNetsError as error:
        given = [str(p).rstrip("/") for n in FILES if (p := getattr(options, n, None)) is not None]
        is_named = not given or any(path in str(error) for path in given)
        is_unnamed = isinstance(error, ArtifactError) and not is_named
        say(f"{given[0]}: {error}" if is_unnamed else str(error))
        return 2
    except MemoryError:
        say("out of memory. Use smaller batches or a smaller network.")
        return 2
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":  # torch's, which is not imported here
            raise
        say(f"the device is out of memory; use smaller batches. {error}")
        return 2
    except KeyboardInterrupt:
        say("stopped.")
        return 130


def _as_setting(words: Sequence[str], others: Sequence[str]) -> str:
    """How to give a setting that was given as an option; empty where there is no such setting."""
    option = next((word for word in others if word.startswith("--")), "")
    key, _, value = option.removeprefix("--").partition("=")
    key = key.replace("-", "_")
    if not any(key in s.key.split(".") for t in settings.all_tables() for s in t.settings):
        return ""
    after = words[words.index(option) + 1 :]
    if not value and after and not after[0].startswith("--"):
        value = after[0]
    return f" It is a setting: give --set {key}={value or 'VALUE'}."


def _near(parser: argparse.ArgumentParser, others: Sequence[str]) -> str:
    """The options of a command that are most like those that it does not have."""
    known = sorted(set(re.findall(r"(?<![\w-])--[a-z][\w-]*", parser.format_help())))
    given = [word.partition("=")[0] for word in others if word.startswith("--")]
    close = [near for word in given for near in get_close_matches(word, known, n=1)]
    return f" Did you mean {' and '.join(close)}?" if close else ""


def say(message: str) -> None:
    """Print an error; names in it that come from files are shown harmlessly."""
    print(f"tsn: {for_terminal(message, keep=chr(10))}", file=sys.stderr)


def parser() -> argparse.ArgumentParser:
    """The parser of all commands; `run` of what it parses is the command."""
    return _built()[0]


def _built() -> tuple[argparse.ArgumentParser, Mapping[str, argparse.ArgumentParser]]:
    """The parser of all commands, and those of each by its name."""
    made = argparse.ArgumentParser(
        prog="tsn", description="One network, many tasks, not one bit forgotten."
    )
    made.add_argument("--version", action="version", version=f"tinysubnets {__version__}")
    commands = made.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in (
        demo, run, settings, compare, search, inspect, predict, model, export, learn, serve, report,
    ):  # fmt: skip
        module.add_parsers(commands)
    return made, commands.choices
