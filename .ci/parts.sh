# Which parts of the check a build does. All of them together take longer than anybody should wait for a build, so what comes behind
# the README's own commands is done in turns: as many parts as fit into the time, beginning with one that the commit draws. Sourced by run.

minutes=${FAIRQUE_CI_MINUTES:-30}
SPARE=45  # seconds: the longest part has taken a tenth longer than it was said to
all_parts=()

part() {  # part SECONDS FUNCTION WHAT: SECONDS are how long it takes on a machine that takes `run_parts`' USUAL to come that far
    all_parts+=("$1 $2 $3")
}

run_parts() {  # run_parts USUAL: how many seconds it usually takes to come this far; this machine may be slower, or faster
    local usual=$1 spent=$SECONDS count=${#all_parts[@]} first=0 i seconds function what commit
    if commit=$(git rev-parse HEAD 2>/dev/null); then first=$((16#${commit:0:7} % count)); fi
    printf '\n=== %d s so far; up to %d minutes: parts from "%s" on\n' "$spent" "$minutes" "${all_parts[first]#* * }"
    for ((i = 0; i < count; i++)); do
        read -r seconds function what <<<"${all_parts[(first + i) % count]}"
        if ((SECONDS + seconds * spent / usual + SPARE <= minutes * 60)); then
            "$function"
        else
            skip "$what" "it takes some $((seconds * spent / usual)) s, of which $((minutes * 60 - SPARE - SECONDS)) are left; FAIRQUE_CI_MINUTES=60 does all"
        fi
    done
}
