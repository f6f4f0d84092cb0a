"""Events and regions of which a test switches some off."""

import hypertrace

for n in range(100):
    with hypertrace.region("kept", n=n), hypertrace.region("off", n=n):
        hypertrace.event("off", n=n)
