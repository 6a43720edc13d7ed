# Completion for bash: the commands and flags of --help, and the names for --strategy, --model and --data.
_entrain()
{
    local program=${COMP_WORDS[0]} command=${COMP_WORDS[1]} word=${COMP_WORDS[COMP_CWORD]} flag="" words=""
    [ "$word" = = ] && word=""
    [ "${COMP_WORDS[COMP_CWORD]}" = = ] && flag=${COMP_WORDS[COMP_CWORD - 1]}
    [ "${COMP_WORDS[COMP_CWORD - 1]}" = = ] && flag=${COMP_WORDS[COMP_CWORD - 2]}
    if [ "$COMP_CWORD" = 1 ]; then
        words=$("$program" --help | sed -n 's/^  \([a-z]*\) .*/\1/p')
    elif [[ $word == -* ]]; then
        words=$("$program" "$command" --help=all | sed -nE 's/^  (    |-., )--(\[no-\])?([a-z0-9-]+)(=?).*/--\3\4/p')
        compopt -o nospace
    else
        case $flag in
        --strategy) words=$("$program" strategies | sed -nE 's/^([a-z][a-z0-9-]*) .*/\1/p') ;;
        --model) words=$("$program" models | sed -nE 's/^([a-z][a-z0-9-]*) .*/\1/p') ;;
        --data) words=$("$program" data | sed -nE 's/^([a-z][a-z0-9-]*) .*/\1/p') ;;
        esac
    fi
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
    [ -n "$words" ] || mapfile -t COMPREPLY < <(compgen -f -- "$word")
}
complete -o filenames -F _entrain entrain
