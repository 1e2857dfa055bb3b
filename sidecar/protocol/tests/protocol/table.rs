//! Tables: the bytes, and each part against a model that has none of its code.

mod bytes;
mod cleaner;
mod exhaustive;
mod fold;
mod getter;
mod index;
mod log;
mod mirror;
mod model;
mod readers;
mod record;
mod request;
mod warm;
mod world;
mod worlds;
