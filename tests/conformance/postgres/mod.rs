//! What only the Postgres store has.

mod finish;
mod sql;
