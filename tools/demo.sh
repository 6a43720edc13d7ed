#!/bin/sh
# demo.sh BUILD: the main job. Two workers train the MNIST convnet on Fashion-MNIST three ways: with seven seeds on even
# workers, as many as three comparisons need for a claim, and with three where one worker is slow.
# 27,000 samples a run reach 70 % (after 7,500 to 23,200 here); 75 % is crossed only after 25,000 to 39,000.
set -e
build=$1
out=${OUT:-demo}
"$build"/entrain check -n 2
exec "$build"/entrain compare -n 2 --strategies=ring,ps-sync,ps-async --model=convnet --data=fashion-mnist \
    --settings=even,slow@3 --seeds=1,2,3,4,5,6,7 --lr=0.01 --momentum=0.5 --batch-size=64 --max-samples=27000 \
    --lr-scale=linear --target=70 --out="$out" --overwrite
