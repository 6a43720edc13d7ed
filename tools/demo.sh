#!/bin/sh
# demo.sh BUILD: the main job. Two workers train the MNIST convnet on Fashion-MNIST three ways, in two cells.
set -e
build=$1
out=${OUT:-demo}
"$build"/entrain check -n 2
exec "$build"/entrain compare -n 2 --strategies=ring,ps-sync,ps-async --model=convnet --data=fashion-mnist \
    --cells=even,slow@1 --seeds=1,2,3 --lr=0.01 --momentum=0.5 --batch-size=64 --epochs=1 --lr-scale=linear \
    --target=75 --out="$out" --overwrite
