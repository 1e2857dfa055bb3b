//! The room of `unsafe`: the seccomp filter, its listener, and the start of a program under both.
