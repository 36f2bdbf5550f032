# bash completion for mlactl(1)
_mlactl()
{
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}
    COMPREPLY=()
    case $prev in
        --socket) mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
        --timeout | --deadline | --interval) return ;;
        evict)
            mapfile -t COMPREPLY < <(compgen -W "$(mlactl --timeout 1 clients 2>/dev/null | awk 'NR > 1 { print $1 }')" -- "$cur")
            return ;;
    esac
    if [[ $cur == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "--socket --timeout --json --deadline --interval --once --version --help" -- "$cur")
    else
        # The commands are those that this version lists.
        mapfile -t COMPREPLY < <(compgen -W "$(mlactl --help | awk '/^options:/ { exit } /^  [a-z]/ { print $1 }')" -- "$cur")
    fi
}
complete -F _mlactl mlactl
