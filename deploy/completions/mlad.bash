# bash completion for mlad(8)
_mlad()
{
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}
    COMPREPLY=()
    case $prev in
        --config | --socket) mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
        --backend) mapfile -t COMPREPLY < <(compgen -W "cpu cuda" -- "$cur"); return ;;
        --log-level) mapfile -t COMPREPLY < <(compgen -W "error warning notice info debug" -- "$cur"); return ;;
        --set) # every key, from what the program itself prints
            compopt -o nospace
            mapfile -t COMPREPLY < <(compgen -W "$(mlad --config /dev/null --check-config 2>/dev/null |
                awk '/^\[/ { gsub(/[][]/, ""); section = $0 } / = / { print section "." $1 "=" } /[a-z] =$/ { print section "." $1 "=" }')" -- "$cur")
            return ;;
    esac
    mapfile -t COMPREPLY < <(compgen -W "--config --socket --backend --log-level --set --check-config --version --help" -- "$cur")
}
complete -F _mlad mlad
