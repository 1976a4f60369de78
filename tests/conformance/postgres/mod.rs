//! What only the Postgres store has.

mod finish;
mod listen;
mod proxy;
mod sql;
