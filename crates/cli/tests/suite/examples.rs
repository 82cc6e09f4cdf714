//! The programs in `examples/` do what they say.

#[allow(dead_code)] // its own main
#[path = "../../../../examples/payments.rs"]
mod payments;

#[tokio::test]
async fn every_order_is_paid_for_once_however_often_the_program_runs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("payments.db");
    for _ in 0..2 {
        assert_eq!(payments::run(&path).await.unwrap(), (20, 21_000));
    }
}
