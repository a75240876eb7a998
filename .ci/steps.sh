# Steps of a build: each is announced, timed and limited in time; the first that fails ends the run. Sourced by run.

step_limit=900  # seconds: more than any step needs on two cores, so that only a step that hangs reaches it
passed=()
skipped=()

step() {  # step NAME COMMAND...
    local name=$1 began=$SECONDS
    shift
    printf '\n=== %s\n' "$name"
    current=$name
    timeout --kill-after=30 "$step_limit" "$@"
    current=
    passed+=("$name")
    printf -- '--- %s: passed in %d s\n' "$name" $((SECONDS - began))
}

skip() {  # skip NAME REASON
    printf '\n=== %s\n--- skipped: %s\n' "$1" "$2"
    skipped+=("$1")
}

summary() {  # summary EXIT_STATUS
    printf '\n'
    for name in "${skipped[@]}"; do printf 'skipped: %s\n' "$name"; done
    if [ "$1" -ne 0 ]; then
        printf 'CI FAILED at "%s" (exit %d): ' "${current:-setup}" "$1"
    else
        printf 'CI PASSED: '
    fi
    printf '%d steps passed, %d skipped, %d s\n' ${#passed[@]} ${#skipped[@]} "$SECONDS"
}
