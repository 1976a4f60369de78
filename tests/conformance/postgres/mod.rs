//! What only the Postgres store has.

mod claim;
mod finish;
mod listen;
mod plans;
mod pooler;
mod proxy;
mod sql;
mod terms;
