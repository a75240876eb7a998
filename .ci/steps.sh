# Steps of a build: each is announced, timed and limited in time; the first that fails ends the run. Sourced by run.

step_limit=1800  # seconds: more than any step needs on two cores, so that only a step that hangs reaches it
passed=()
skipped=()
unstable=()

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

# Tests that start, freeze and kill real processes now and then meet a machine that is busy elsewhere. What fails is run once
# more; what fails again ends the run, and what passes then is named at the end: it is to be mended, not forgotten.
tests() {  # tests NAME COMMAND...: a step whose command is pytest, however it is called
    local name=$1 began=$SECONDS status=0
    shift
    printf '\n=== %s\n' "$name"
    current=$name
    timeout --kill-after=30 "$step_limit" "$@" || status=$?
    if [ "$status" -eq 1 ]; then
        printf -- '\n--- %s: what failed is run once more\n' "$name"
        timeout --kill-after=30 "$step_limit" env PYTEST_ADDOPTS="--last-failed --last-failed-no-failures=none --cov-append" "$@"
        unstable+=("$name")
    elif [ "$status" -ne 0 ]; then
        return "$status"
    fi
    current=
    passed+=("$name")
    printf -- '--- %s: passed in %d s\n' "$name" $((SECONDS - began))
}

# What draws its own lots (and says which) is given a second draw in the same way.
drawn() {  # drawn NAME COMMAND...
    local name=$1 began=$SECONDS status=0
    shift
    printf '\n=== %s\n' "$name"
    current=$name
    timeout --kill-after=30 "$step_limit" "$@" || status=$?
    if [ "$status" -ne 0 ]; then
        printf -- '\n--- %s: once more, with another draw\n' "$name"
        timeout --kill-after=30 "$step_limit" "$@"
        unstable+=("$name")
    fi
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
    for name in "${unstable[@]}"; do printf 'UNSTABLE: %s passed only when what had failed was run again\n' "$name"; done
    if [ "$1" -ne 0 ]; then
        printf 'CI FAILED at "%s" (exit %d): ' "${current:-setup}" "$1"
    else
        printf 'CI PASSED: '
    fi
    printf '%d steps passed, %d skipped, %d s\n' ${#passed[@]} ${#skipped[@]} "$SECONDS"
}
