//! Rebuilds the library when a migration changes: the steps are embedded by a macro, which cargo cannot see through.

fn main() {
    println!("cargo:rerun-if-changed=migrations");
}
