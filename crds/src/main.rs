//! Prints the definition of `ReplicaGroup`, crds/replicagroups.yaml.
#![allow(clippy::print_stdout, reason = "a program that prints")]

fn main() {
    print!("{}", tailwind_crds::definition());
}
