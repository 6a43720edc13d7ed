#!/bin/sh
# demo.sh BUILD [resnet|strategies]: the main job. Two workers train the MNIST convnet on Fashion-MNIST with three strategies, on even
# workers and with one that is three times slower, with seven seeds in each: enough for the primary comparison, ps-async against
# ring with a slow worker, and then for the other three with ring. Every run reaches 65 % well within its 27,000 samples; of
# 70 %, one of seven runs of ps-async may fall short, and a run that misses decides the comparison. Curves use 2,000 samples, so that two thirds of the time is training.
# Seeds during which other processes use the machine are repeated once, which takes longer.
#
# DEMO_FLAGS: more flags, such as --max-samples=2700 for a tenth of it.
#
# With resnet: four strategies on colour images, in a quarter of an hour. A ResNet-18 of a quarter of the width learns which of
# ten photographs a patch is from (tools/make_cifar.py): one pass over 15,000 patches, one seed, so that nothing is claimed. The
# photographs come in two wheels from PyPI; PYTHON=.. names a Python that has them and Pillow.
#
# With strategies: all strategies on the mlp, each with the best of five rates; `grouped` without groups is local-sgd, and `solo`
# has one worker. Eleven seeds are enough for 28 comparisons, each arm with ring in both settings. In virtual time, since eight
# workers and a server on two cores would be timed as the scheduler shares the cores out, not as the strategies wait. The periods
# are short, or a run of 187 steps would end before diloco's first outer step; no momentum, since asynchrony has its own.
set -e
build=$1
compare() { exec "$build"/entrain compare --out="$out" --overwrite "$@" $DEMO_FLAGS; }

if [ "$2" = strategies ]; then
    out=${OUT:-demo-strategies}
    compare --virtual -n 8 --compute=lognormal:10ms,0.3 --tune=lr=0.005,0.01,0.03,0.1,0.2 --lr-scale=none --momentum=0 \
        --strategies=ring,ps-sync,hierarchical,hybrid,ps-async,ssp,ringmaster,delay-adaptive,softsync,dc-asgd,easgd,local-sgd,d-psgd \
        --arm=slowmo=slowmo:period=16 --arm=diloco=diloco:period=16 --baseline=ring --settings=even,slow --seeds=1..11 \
        --model=mlp --data=fashion-mnist --batch-size=16 --max-samples=24000 --target=70 --holdout=1000 --limit-test-samples=2000
fi

if [ "$2" = resnet ]; then
    out=${OUT:-demo-resnet}
    photos=$build/photos
    if [ -z "$PYTHON" ] && [ ! -d "$photos" ]; then
        venv=$build/photos-python
        PYTHON=$venv/bin/python3
        line="python3 -m venv $venv && $PYTHON -m pip install -q --no-deps pillow scikit-image scikit-learn"
        if [ ! -e "$venv/whole" ]; then # pip may have been interrupted
            rm -rf "$venv"
            echo "$line"
            eval "$line" || {
                echo "demo.sh: the line above failed (apt-get install python3-venv? no network?); or give PYTHON=PROGRAM" >&2
                exit 1
            }
            touch "$venv/whole"
        fi
    fi
    if [ ! -d "$photos" ]; then
        rm -rf "$photos.new"
        "$PYTHON" "$(dirname "$0")/make_cifar.py" --photos "$photos.new" --train=16000 --test=2000
        mv "$photos.new" "$photos"
    fi
    "$build"/entrain check -n 2
    compare -n 2 --lr-scale=linear --strategies=ring,ps-sync,ps-async,ssp --model=resnet18:width=16,stem=cifar --data="$photos" --augment=crop:32:4,flip \
        --settings=even,slow --seeds=1 --batch-size=32 --lr=0.005 --momentum=0.9 --max-samples=15000 --holdout=1000 --target=60
fi
out=${OUT:-demo}
"$build"/entrain check -n 2
compare -n 2 --lr-scale=linear --strategies=ring,ps-sync,ps-async --baseline=ring --primary=slow:1:3 --settings=even,slow --seeds=1,2,3,4,5,6,7 --retry-busy \
    --model=convnet --data=fashion-mnist --lr=0.01 --momentum=0.5 --batch-size=64 --max-samples=27000 --target=65 \
    --holdout=2000 --limit-test-samples=5000
