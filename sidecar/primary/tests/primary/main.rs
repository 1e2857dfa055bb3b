//! A primary's log over a fabric that does what a test tells it.
#![allow(clippy::unwrap_used, reason = "tests")]

mod copies;
mod gets;
mod group;
mod log;
mod table;
