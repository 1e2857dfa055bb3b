#!/bin/sh
# cmake without its builds. ibverbs-sys, the only crate that calls it, compiles all of rdma-core for the headers that the configuration has
# laid out already, and links the system's library.
[ "$1" = --build ] || exec cmake "$@"
