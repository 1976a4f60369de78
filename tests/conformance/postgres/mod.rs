//! What only the Postgres store has.

mod claim;
mod conn;
mod finish;
mod listen;
mod migrate;
mod plans;
mod pooler;
mod proxy;
mod sql;
mod terms;
mod tls;
