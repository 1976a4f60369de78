//! The user's path: the quickstart, and the command line as a contract, with the real program.

mod commands;
mod control;
mod doctor;
mod fleet;
mod quickstart;
mod refusals;
