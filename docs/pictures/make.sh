#!/bin/sh
# Makes the pictures of README.md and tutorial.md from sessions that it records, and prints the text that is beside them.
# Run it in the source tree as root, on an idle machine with KVM, tracefs, chromium and `hypertrace` on the path.
set -eu
pictures=$(dirname "$(realpath "$0")")
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT

# Writes a picture of one region's parts, and of what each thread did around the slowest: SESSION REGION HEIGHT NAME.
picture() {
    hypertrace regions "$1" --name "$2" --html "$made/$4.html"
    # The page allows no style but its own.
    sed -i "s/<meta http-equiv=\"Content-Security-Policy\"[^>]*>//" "$made/$4.html"
    cat >>"$made/$4.html" <<'STYLE'
<style>
header, main > .scroll, section > p, .note, .columns ~ .columns, .columns > div:nth-child(2),
section > h3:nth-of-type(2), section > .bars, details, [data-lanes] p { display: none !important; }
section { border: 0; margin: 0; padding: 0; }
</style>
STYLE
    chromium --headless --no-sandbox --hide-scrollbars --window-size="880,$3" --screenshot="$pictures/$4.png" \
        "file://$made/$4.html" 2>/dev/null
}

hypertrace demo -o "$made/demo"
hypertrace regions "$made/demo" --name batch
picture "$made/demo" batch 610 demo

cargo build --quiet --release -p hypertrace --example lookups
hypertrace record --kernel -o "$made/lookups" target/release/examples/lookups
hypertrace regions "$made/lookups" --name look_up
picture "$made/lookups" look_up 550 lookups
# The timeline of the slowest: from its begin to its end.
hypertrace regions "$made/lookups" --name look_up --samples | sort -t, -k8 -n | tail -1 | {
    IFS=, read -r name by session client id begin begin_unix duration parts
    hypertrace report "$made/lookups" --event miss --event 'load_*' --event 'sched:*' \
        --from "${begin}ns" --until "$((begin + duration))ns"
}
