"""Scripts with which a shell completes the commands and options of ``mnagt``."""

from collections.abc import Mapping, Sequence

SHELLS = ("bash", "zsh", "fish")


def completion_script(shell: str, options: Mapping[str, Sequence[str]]) -> str:
    """A script for ``shell`` that completes commands, their ``options``, and otherwise names of files.

    >>> print(completion_script("fish", {"train": ["--lr"]}), end="")
    complete -c mnagt -n __fish_use_subcommand -f -a 'train'
    complete -c mnagt -n '__fish_seen_subcommand_from train' -l lr
    """
    if shell == "fish":
        lines = [f"complete -c mnagt -n __fish_use_subcommand -f -a '{' '.join(options)}'"]
        for command, names in options.items():
            condition = f"'__fish_seen_subcommand_from {command}'"
            lines += [f"complete -c mnagt -n {condition} -l {name.removeprefix('--')}" for name in names]
        return "\n".join(lines) + "\n"
    cases = "\n".join(f'    {command}) words="{" ".join(names)}" ;;' for command, names in options.items())
    first = "autoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else ""
    return first + BASH.replace("COMMANDS", " ".join(options)).replace("CASES", cases)


BASH = """\
_mnagt() {
  local word="${COMP_WORDS[COMP_CWORD]}" words="COMMANDS"
  if [ "$COMP_CWORD" -gt 1 ]; then
    words=""
    case "${COMP_WORDS[1]}" in
CASES
    esac
    case "$word" in --*) ;; *) words="" ;; esac
  fi
  COMPREPLY=( $(compgen -W "$words" -- "$word") )
}
complete -o default -F _mnagt mnagt
"""
