#!/bin/sh
# demo.sh BUILD [resnet]: the main job. Two workers train the MNIST convnet on Fashion-MNIST with three strategies, on even
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
set -e
build=$1
compare() { exec "$build"/entrain compare -n 2 --lr-scale=linear --out="$out" --overwrite "$@" $DEMO_FLAGS; }

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
    compare --strategies=ring,ps-sync,ps-async,ssp --model=resnet18:width=16,stem=cifar --data="$photos" --augment=crop:32:4,flip \
        --settings=even,slow --seeds=1 --batch-size=32 --lr=0.005 --momentum=0.9 --max-samples=15000 --holdout=1000 --target=60
fi
out=${OUT:-demo}
"$build"/entrain check -n 2
compare --strategies=ring,ps-sync,ps-async --baseline=ring --primary=slow:1:3 --settings=even,slow --seeds=1,2,3,4,5,6,7 --retry-busy \
    --model=convnet --data=fashion-mnist --lr=0.01 --momentum=0.5 --batch-size=64 --max-samples=27000 --target=65 \
    --holdout=2000 --limit-test-samples=5000
